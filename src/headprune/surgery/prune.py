"""`prune_`: removing heads for real."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headprune.checkpoint import config_entry
from headprune.checkpoint.config_entry import note_pruned_heads
from headprune.errors import MaskError, UnsupportedModelError, VerificationError
from headprune.heads import HeadMap, HeadMask
from headprune.hooks import alone_with, is_gated, joined_heads
from headprune.masking import EmptySite, is_masked, masked
from headprune.structure.dummy_inputs import example_inputs
from headprune.structure.find import ModelStructure, examined, find_heads, known_structure, model_structure, remember
from headprune.structure.run import Difference, answer_tensors, eval_mode, run, same_attributes, unwrapped
from headprune.surgery.apply import Journal, apply_, tie_again_
from headprune.surgery.edits import Cut, Edits, Gqa, cut_site
from headprune.surgery.remove import EquivalenceCheck, Way, remove_heads, remove_neurons
from headprune.types import Batch


def prune_(
    model: nn.Module,
    mask: HeadMask,
    *,
    gqa: Gqa | None = None,
    empty_site: EmptySite = "bias",
    verify: bool = True,
    example: Batch | None = None,
    about: Mapping[str, str] | None = None,
) -> nn.Module:
    """Remove the heads that `mask` does not keep, in place, and return the model.

    The pruned model answers as the masked one. It stays an ordinary model: train it, save it with
    `save_pretrained`, load it with `from_pretrained` after `import headprune`.

    `gqa` says how grouped-query attention may shrink: "group" (whole KV groups), "query" (the same number of query
    heads from each group), "expand" (any heads; every kept head gets its own keys and values, so the cache grows).
    Without it, whatever fits without expanding. A mask that does not fit is refused, never changed.
    `empty_site="skip"`: a site that loses all heads adds nothing at all, its output bias included. Parameters that no
    answer depends on any more (the norm before an emptied block) are frozen, and named in the config's history.
    `verify` compares the pruned model with the masked one on `example` (or a batch made from the config) and puts the
    model back if they differ by more than rounding. `about` (`{"by": …, "on": …}`) goes into the model card.

    Cost: two runs of each block that changes; and unless `find_heads` has just looked at the model, one small forward
    pass and one tiny backward pass per head.

    Example:
        >>> mask = hp.HeadMask.from_dict(hp.find_heads(model), {"encoder.0": [0, 2], "encoder.1": []})
        >>> small = hp.prune_(model, mask)
        >>> len(hp.find_heads(small))
        2
        >>> small.save_pretrained("small")
    """
    prune_with_report(model, mask, gqa=gqa, empty_site=empty_site, verify=verify, example=example, about=about)
    return model


@dataclass(frozen=True)
class Pruning:
    """What was done to a model, and how to undo it."""

    before: HeadMap
    after: HeadMap
    edits: Edits
    journals: tuple[Journal, ...]
    difference: Difference | None = None  # of the pruned from the masked model, if it was verified
    frozen: tuple[str, ...] = ()  # parameters on which no answer depends any more: they no longer ask for gradients

    def undo(self) -> None:
        for journal in reversed(self.journals):
            journal.roll_back()


def prune_with_report(
    model: nn.Module,
    mask: HeadMask,
    *,
    gqa: Gqa | None = None,
    empty_site: EmptySite = "bias",
    verify: bool = True,
    example: Batch | None = None,
    about: Mapping[str, str] | None = None,
    structure: ModelStructure | None = None,
) -> Pruning:
    """`prune_` for callers who want to tell what happened.

    `structure` is the model's, where somebody knows it already: that of the model of which this is a copy.
    """
    if isinstance(model, nn.parallel.DistributedDataParallel):
        raise UnsupportedModelError(
            "The model is wrapped in DistributedDataParallel, which would go on to reduce gradients of weights that "
            "are gone. Prune model.module on every process, and wrap it anew."
        )
    model = unwrapped(model)
    mask = _checked_mask(mask, gqa, empty_site)
    repair = matching_repair(model, mask, empty_site, example)
    with alone_with(model, "prune_"), torch.inference_mode(False):
        before = silent_parameters(model, mask, example) if mask.empties else set()
        pruning = _prune(model, mask, gqa, empty_site, verify, example, structure)
        if not pruning.journals:
            return pruning
        if before:
            pruning = _with_frozen(pruning, model, before, example)
    if repair is not None:
        about = {**(about or {}), "recovered": str(repair["method"])}
        biases = Edits(biases=added_biases(model, pruning.before, repair))
        pruning = dataclasses.replace(pruning, edits=pruning.edits.then(biases))
    if pruning.frozen:
        about = {**(about or {}), "frozen": ", ".join(pruning.frozen)}
    write_record(model, pruning.before, pruning.after, pruning.edits, about)
    config_entry.forget_repair(model)
    for site in pruning.after:
        if site.num_heads != site.original_num_heads:
            config_entry.mark_pruned(model.get_submodule(site.path))
    _forget_unpacking(model)
    tie_again_(model)
    remember(model, pruning.after)
    return pruning


def _with_frozen(pruning: Pruning, model: nn.Module, before: set[str], example: Batch | None) -> Pruning:
    """The norm before an emptied block, its position table …: frozen, because training in several processes stops at
    a parameter that waits for a gradient which never comes."""
    reached = parameter_gradients(model, example)
    idle = tuple(name for name in reached if name in before and reached[name] is None)
    if not idle:
        return pruning
    frozen: dict[str, tuple[str, ...]] = {}
    for name in idle:
        path, _, last = name.rpartition(".")
        frozen[path] = (*frozen.get(path, ()), last)
    edits = Edits(frozen=frozen)
    return dataclasses.replace(
        pruning,
        edits=pruning.edits.then(edits),
        journals=(*pruning.journals, apply_(model, edits)),
        frozen=idle,
    )


def silent_parameters(model: nn.Module, mask: HeadMask, example: Batch | None) -> set[str]:
    """Parameters that reach the answer, but change nothing in it while these heads are masked: their gradient is
    exactly 0. Parameters that the example does not use at all, such as those of an expert, are not among them."""
    with masked(model, mask):
        gradients = parameter_gradients(model, example)
    return {name for name, gradient in gradients.items() if gradient is not None and not bool(gradient.any())}


def parameter_gradients(model: nn.Module, example: Batch | None) -> dict[str, Tensor | None]:
    """Of everything that the model answers, for each parameter that is trained."""
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    inputs = example if example is not None else example_inputs(model)
    with torch.enable_grad(), same_attributes(model):
        answers = [x for x in answer_tensors(run(model, inputs)) if x.requires_grad]
        if not trained or not answers:
            return dict.fromkeys(trained)
        total = torch.stack([x.float().nan_to_num(posinf=0.0, neginf=0.0).square().mean() for x in answers]).sum()
        return dict(zip(trained, torch.autograd.grad(total, list(trained.values()), allow_unused=True), strict=True))


@contextmanager
def temporarily_pruned(
    model: nn.Module,
    mask: HeadMask,
    *,
    gqa: Gqa | None = None,
    empty_site: EmptySite = "bias",
    example: Batch | None = None,
) -> Iterator[tuple[HeadMap, HeadMap]]:
    """The model pruned until the block ends; gives its heads before and now."""
    with alone_with(model, "A trial pruning"):
        pruning = _prune(model, _checked_mask(mask, gqa, empty_site), gqa, empty_site, False, example, None)
        try:
            yield pruning.before, pruning.after
        finally:
            pruning.undo()


def _checked_mask(mask: HeadMask, gqa: Gqa | None, empty_site: EmptySite) -> HeadMask:
    if gqa not in (None, "group", "query", "expand"):
        raise MaskError(f"gqa is {gqa!r}; expected 'group', 'query', 'expand' or None.")
    if empty_site not in ("bias", "skip"):
        raise MaskError(f"empty_site is {empty_site!r}; expected 'bias' or 'skip'.")
    if not isinstance(mask, HeadMask):
        raise MaskError(f"Found {type(mask).__name__}; prune_ takes a HeadMask.")
    return mask


def _prune(
    model: nn.Module,
    mask: HeadMask,
    gqa: Gqa | None,
    empty_site: EmptySite,
    verify: bool,
    example: Batch | None,
    structure: ModelStructure | None,
) -> Pruning:
    """Remove all heads or none. What an earlier look at the model does not make possible, a new one may: its weights
    need not be the same any more."""
    refuse_unfit_models(model)
    known = structure or known_structure(model, example, neurons=mask.has_neurons)
    if known is not None:
        try:
            return _prune_by(known, model, mask, gqa, empty_site, verify, example)
        except (UnsupportedModelError, VerificationError):
            structure = examined(model, example, neurons=mask.has_neurons)
    else:
        structure = model_structure(model, example, neurons=mask.has_neurons)
    return _prune_by(structure, model, mask, gqa, empty_site, verify, example)


def _prune_by(
    structure: ModelStructure,
    model: nn.Module,
    mask: HeadMask,
    gqa: Gqa | None,
    empty_site: EmptySite,
    verify: bool,
    example: Batch | None,
) -> Pruning:
    mask = mask.filled(structure.heads).checked_for(structure.heads)
    losing = [site for site in structure.heads if mask.kept(site.id) != site.kept]
    cuts = [cut_site(site, mask.kept(site.id), gqa) for site in losing]
    if not (verify and cuts):
        return _remove_all(model, structure, cuts, empty_site, every=False)
    check = EquivalenceCheck(model, mask, structure.heads, empty_site, example)
    pruning = _remove_all(model, structure, cuts, empty_site, every=True)
    try:
        gap = check.gap()
        if not gap.is_small:
            check.check_rounding(gap, pruning.undo)
            pruning = _remove_all(model, structure, cuts, empty_site, every=True)
    except BaseException:
        pruning.undo()
        raise
    return dataclasses.replace(pruning, difference=gap)


def _remove_all(
    model: nn.Module, structure: ModelStructure, cuts: list[Cut], empty_site: EmptySite, *, every: bool
) -> Pruning:
    """The cuts, one after another, each compared with its block as it was; of blocks that are made alike and lose as
    much, the first, unless `every` one is to be compared."""
    edits, journals = Edits(), []
    known: dict[tuple[object, ...], Way] = {}
    try:
        with eval_mode(model), joined_heads(model):  # dropout would make every block differ from itself
            for cut in cuts:
                kind = _kind(structure, cut)
                way = None if every or cut.is_again else known.get(kind)
                if cut.site.is_neurons:
                    part = structure.feed_forward[cut.site.id]
                    more, journal = remove_neurons(model, part, cut, empty_site, is_known=way is not None)
                    known.setdefault(kind, Way(0, ()))
                else:
                    block = structure.blocks[cut.site.id]
                    more, journal, known[kind] = remove_heads(model, block, cut, empty_site, way)
                journals.append(journal)
                edits = edits.then(more)
    except BaseException:
        for journal in reversed(journals):
            journal.roll_back()
        raise
    return Pruning(structure.heads, heads_after(structure.heads, cuts), edits, tuple(journals))


def _kind(structure: ModelStructure, cut: Cut) -> tuple[object, ...]:
    """The same for cuts that take as much from blocks that are made alike."""
    path = cut.site.output
    alike = structure.equal.in_first(path) if structure.equal is not None else path
    return alike, len(cut.kept), len(cut.groups), cut.expand


def heads_after(heads: HeadMap, cuts: list[Cut]) -> HeadMap:
    by_site = {cut.site.id: cut for cut in cuts}
    sites = []
    for site in heads:
        cut = by_site.get(site.id)
        if cut is not None:
            site = dataclasses.replace(
                site, num_heads=len(cut.kept), num_kv_heads=len(cut.groups), kept=cut.kept, groups=cut.groups
            )
        sites.append(site)
    return HeadMap(tuple(sites), skipped=heads.skipped, model_type=heads.model_type)


def _forget_unpacking(model: nn.Module) -> None:
    """A model read from a GGUF file has plain weights but counts as quantised: transformers would not save it."""
    quantizer = getattr(model, "hf_quantizer", None)
    if quantizer is not None and all(type(p) is nn.Parameter and p.is_floating_point() for p in model.parameters()):
        quantizer.remove_quantization_config(model)


def added_biases(model: nn.Module, heads: HeadMap, repair: dict[str, Any]) -> dict[str, int]:
    """Biases that projections did not have before, and how long they are; those of silenced sites are gone again."""
    paths = [heads[site].output for site in repair["biases"]]
    biases = {path: getattr(model.get_submodule(path), "bias", None) for path in paths}
    return {path: len(bias) for path, bias in biases.items() if bias is not None}


def write_record(
    model: nn.Module, before: HeadMap, after: HeadMap, edits: Edits, about: Mapping[str, str] | None
) -> None:
    """Add a pruning to what the config says of earlier ones."""
    old = config_entry.read(model)
    done = edits.renamed(lambda path: config_entry.stored_path(model, path))
    if old is not None:
        done = Edits.from_dict(old["edits"]).then(done)
    sites = tuple(
        dataclasses.replace(
            site, path=config_entry.stored_path(model, site.path), output=config_entry.stored_path(model, site.output)
        )
        for site in after
    )
    if old is not None:  # neurons that went before, where this pruning was of heads alone
        here = {site.id for site in sites}
        sites += tuple(site for site in config_entry.recorded_heads(old) if site.is_neurons and site.id not in here)
    gone = HeadMask.full(before) - HeadMask.full(after)
    step: dict[str, Any] = {"removed": {site: heads for site, heads in gone.to_dict().items() if heads}}
    step |= {key: str(value) for key, value in (about or {}).items()}
    entry = {
        "version": config_entry.VERSION,
        "heads": HeadMap(sites, skipped=after.skipped, model_type=after.model_type).to_dict(),
        "edits": done.to_dict(),
        "history": [*(old or {}).get("history", []), step],
    }
    config_entry.write(model, entry)
    note_pruned_heads(getattr(model, "config", None), after.attention)


def refuse_unfit_models(model: nn.Module) -> None:
    """Models that are something else at the moment: masked, gated, under an adapter, or partly elsewhere."""
    if inner := [prefix.removesuffix(".") for prefix, _, _ in config_entry.pruned_parts(model) if prefix]:
        raise UnsupportedModelError(
            f"{inner[0]} in {type(model).__name__} was pruned by itself, and its config tells of that: prune and "
            f"repair it by itself, too: model.get_submodule('{inner[0]}')."
        )
    if is_masked(model, anywhere=True):
        raise UnsupportedModelError(
            "The model is inside a `masked` block, of this or another thread. Leave the block, then prune."
        )
    if is_gated(model):
        raise UnsupportedModelError("The model has gates. gates.remove_() takes them off and prunes what they closed.")
    if any(hasattr(module, "base_layer") and hasattr(module, "merge") for module in model.modules()):
        raise UnsupportedModelError(
            "The model carries an adapter (LoRA or another of peft). Merge it first: model = model.merge_and_unload()."
        )
    placement = set(map(str, getattr(model, "hf_device_map", {}).values()))
    if "disk" in placement or ("cpu" in placement and len(placement) > 1):
        raise UnsupportedModelError(
            "Parts of the model are offloaded (hf_device_map). Load it without offloading, prune it, and save it."
        )


def refuse_unpruned_repair(model: nn.Module) -> None:
    """Models between `recover_` and `prune_`: neither the original nor the pruned one."""
    if config_entry.repaired_parts(model):
        raise UnsupportedModelError(
            "The model was repaired (recover_) for heads that are still there: it is neither the original nor the "
            "pruned model. prune_ it with the mask that it was repaired for first."
        )


def matching_repair(
    model: nn.Module, mask: HeadMask, empty_site: EmptySite, example: Batch | None
) -> dict[str, Any] | None:
    """What `recover_` did to this model, if it was for this mask."""
    inner = [path for path in config_entry.repaired_parts(model) if path]
    if inner:
        raise MaskError(f"{inner[0]} was repaired (recover_) by itself. Prune that part, or repair the whole model.")
    repair = config_entry.noted_repair(model)
    if repair is None:
        return None
    heads = find_heads(model, example, neurons=mask.has_neurons)
    if repair["kept"] != config_entry.kept_where_heads_go(mask.filled(heads).checked_for(heads), heads):
        raise MaskError(
            "The model was repaired (recover_) for another mask than this one. Prune it with the mask that it was "
            "repaired for, or start from the original."
        )
    if empty_site == "skip" and not all(repair["kept"].values()):
        raise MaskError("The model was repaired (recover_) with the biases of its sites: empty_site='skip' drops them.")
    return repair
