"""`prune_`: removing heads for real."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from headprune.checkpoint import config_entry
from headprune.checkpoint.v4_config import note_pruned_heads
from headprune.equality import Difference, difference
from headprune.errors import MaskError, UnsupportedModelError
from headprune.heads import HeadMap, HeadMask
from headprune.hooks import HeadFactor, called_projections, captured_input, captured_output, is_gated, joined_heads
from headprune.masking import EmptySite, is_masked
from headprune.structure.find import ModelStructure, find_heads, model_structure, remember, unwrapped
from headprune.structure.modes import eval_mode
from headprune.structure.neurons import FeedForward
from headprune.structure.run import run_again
from headprune.structure.trace import AttentionBlock
from headprune.surgery import plan_edits
from headprune.surgery.apply import Journal, apply_, tie_again_
from headprune.surgery.edits import Edits
from headprune.surgery.equivalence import EquivalenceCheck
from headprune.surgery.head_counts import repairs
from headprune.surgery.neurons import neuron_edits
from headprune.surgery.units import Cut, Gqa, cut_site


def prune_(
    model: nn.Module,
    mask: HeadMask,
    *,
    gqa: Gqa | None = None,
    empty_site: EmptySite = "bias",
    verify: bool = True,
    example: Mapping[str, Any] | None = None,
    about: Mapping[str, str] | None = None,
) -> nn.Module:
    """Remove the heads that `mask` does not keep, in place, and return the model.

    The pruned model answers as the masked one. It stays an ordinary model: train it, save it with
    `save_pretrained`, load it with `from_pretrained` after `import headprune`.

    `gqa` says how grouped-query attention may shrink: "group" (whole KV groups), "query" (the same number of query
    heads from each group), "expand" (any heads; every kept head gets its own keys and values, so the cache grows).
    Without it, whatever fits without expanding. A mask that does not fit is refused, never changed.
    `empty_site="skip"`: a site that loses all heads adds nothing at all, its output bias included.
    `verify` compares the pruned model with the masked one on `example` (or a batch made from the config) and puts the
    model back if they differ by more than rounding. `about` (`{"by": …, "on": …}`) goes into the model card.

    Cost: one small forward pass, one tiny backward pass per head, and one run of each block that changes.

    Example:
        >>> mask = hp.HeadMask.from_dict(hp.find_heads(model), {"encoder.0": [0, 2], "encoder.1": []})
        >>> small = hp.prune_(model, mask)
        >>> len(hp.find_heads(small))
        2
        >>> small.save_pretrained("small")
    """
    perform(model, mask, gqa=gqa, empty_site=empty_site, verify=verify, example=example, about=about)
    return model


@dataclass(frozen=True)
class Outcome:
    """What a pruning did."""

    before: HeadMap
    after: HeadMap
    edits: Edits
    journals: list[Journal]
    difference: Difference | None  # of the pruned from the masked model, if it was verified

    def undo(self) -> None:
        for journal in reversed(self.journals):
            journal.roll_back()


def perform(
    model: nn.Module,
    mask: HeadMask,
    *,
    gqa: Gqa | None = None,
    empty_site: EmptySite = "bias",
    verify: bool = True,
    example: Mapping[str, Any] | None = None,
    about: Mapping[str, str] | None = None,
) -> Outcome:
    """`prune_` for callers who want to tell what happened."""
    model = unwrapped(model)
    if isinstance(mask, HeadMask) and mask.has_neurons:
        mask = mask.filled(find_heads(model, example, neurons=True))
    repair = _checked_repair(model, mask, empty_site, example)
    with torch.inference_mode(False):
        outcome = _cut_out(model, mask, gqa, empty_site, verify, example)
    if outcome.journals:
        if repair is not None:
            about = {**(about or {}), "recovered": str(repair["method"])}
            outcome.edits.biases |= _added_biases(model, outcome.before, repair)
        _write_record(model, outcome, about)
        config_entry.forget_repair(model)
        for site in outcome.after:
            if site.num_heads != site.original_num_heads:
                config_entry.mark_pruned(model.get_submodule(site.path))
        _forget_unpacking(model)
        tie_again_(model)
        remember(model, outcome.after)
    return outcome


def _checked_repair(
    model: nn.Module, mask: HeadMask, empty_site: EmptySite, example: Mapping[str, Any] | None
) -> dict[str, Any] | None:
    """What `recover_` did to this model, if it was for this mask."""
    inner = [path for path in config_entry.repaired_parts(model) if path]
    if inner:
        raise MaskError(f"{inner[0]} was repaired (recover_) by itself. Prune that part, or repair the whole model.")
    repair = config_entry.noted_repair(model)
    if repair is None or not isinstance(mask, HeadMask):
        return repair
    heads = find_heads(model, example, neurons=mask.has_neurons)
    if repair["kept"] != config_entry.kept_where_heads_go(mask.filled(heads).checked_for(heads), heads):
        raise MaskError(
            "The model was repaired (recover_) for another mask than this one. Prune it with the mask that it was "
            "repaired for, or start from the original."
        )
    if empty_site == "skip" and not all(repair["kept"].values()):
        raise MaskError("The model was repaired (recover_) with the biases of its sites: empty_site='skip' drops them.")
    return repair


def _added_biases(model: nn.Module, heads: HeadMap, repair: dict[str, Any]) -> dict[str, int]:
    """Biases that projections did not have before, and how long they are; those of silenced sites are gone again."""
    paths = [heads[site].output for site in repair["biases"]]
    biases = {path: getattr(model.get_submodule(path), "bias", None) for path in paths}
    return {path: len(bias) for path, bias in biases.items() if bias is not None}


@contextmanager
def tried(
    model: nn.Module,
    mask: HeadMask,
    *,
    gqa: Gqa | None = None,
    empty_site: EmptySite = "bias",
    example: Mapping[str, Any] | None = None,
) -> Iterator[tuple[HeadMap, HeadMap]]:
    """The model pruned until the block ends; gives its heads before and now."""
    outcome = _cut_out(model, mask, gqa, empty_site, False, example)
    try:
        yield outcome.before, outcome.after
    finally:
        outcome.undo()


def _cut_out(
    model: nn.Module,
    mask: HeadMask,
    gqa: Gqa | None,
    empty_site: EmptySite,
    verify: bool,
    example: Mapping[str, Any] | None,
) -> Outcome:
    """Do all cuts or none."""
    refuse_unfit_models(model)
    view = model_structure(model, example, neurons=isinstance(mask, HeadMask) and mask.has_neurons)
    mask = mask.filled(view.heads) if isinstance(mask, HeadMask) else mask
    cuts = _cuts(view.heads, mask, gqa, empty_site)
    if not (verify and cuts):
        return _operated(model, view, cuts, empty_site)
    whole = EquivalenceCheck(model, mask, view.heads, empty_site, example)
    outcome = _operated(model, view, cuts, empty_site)
    try:
        gap = whole.gap()
        if not gap.is_small:
            whole.check_rounding(gap, outcome.undo)
            outcome = _operated(model, view, cuts, empty_site)
    except BaseException:
        outcome.undo()
        raise
    return dataclasses.replace(outcome, difference=gap)


def _operated(model: nn.Module, view: ModelStructure, cuts: list[Cut], empty_site: EmptySite) -> Outcome:
    """The cuts, one after another, each compared with its block as it was."""
    outcome = Outcome(view.heads, _pruned_heads(view.heads, cuts), Edits(), [], None)
    try:
        with eval_mode(model), joined_heads(model):  # dropout would make every block differ from itself
            for cut in cuts:
                if cut.site.is_neurons:
                    edits, journal = _remove_neurons(model, view.feed_forward[cut.site.id], cut, empty_site)
                else:
                    edits, journal = _operate(model, view.anatomy[cut.site.id], cut, empty_site)
                outcome.journals.append(journal)
                outcome = dataclasses.replace(outcome, edits=outcome.edits.then(edits))
    except BaseException:
        outcome.undo()
        raise
    return outcome


def _forget_unpacking(model: nn.Module) -> None:
    """A model read from a GGUF file has plain weights but counts as quantised: transformers would not save it."""
    quantizer: Any = getattr(model, "hf_quantizer", None)
    if quantizer is not None and all(type(p) is nn.Parameter and p.is_floating_point() for p in model.parameters()):
        quantizer.remove_quantization_config(model)


def refuse_unfit_models(model: nn.Module) -> None:
    """Models that are something else at the moment: masked, gated, under an adapter, or partly elsewhere."""
    if is_masked(model):
        raise UnsupportedModelError("The model is inside a `masked` block. Leave the block, then prune.")
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


def _cuts(heads: HeadMap, mask: HeadMask, gqa: Gqa | None, empty_site: str) -> list[Cut]:
    if gqa not in (None, "group", "query", "expand"):
        raise MaskError(f"gqa is {gqa!r}; expected 'group', 'query', 'expand' or None.")
    if empty_site not in ("bias", "skip"):
        raise MaskError(f"empty_site is {empty_site!r}; expected 'bias' or 'skip'.")
    if not isinstance(mask, HeadMask):
        raise MaskError(f"Found {type(mask).__name__}; prune_ takes a HeadMask.")
    mask.checked_for(heads)
    return [cut_site(site, mask.kept(site.id), gqa) for site in heads if mask.kept(site.id) != site.kept]


def _operate(model: nn.Module, anatomy: AttentionBlock, cut: Cut, empty_site: EmptySite) -> tuple[Edits, Journal]:
    """Cut one site; try the ways to repair its counts until the block answers as it does with the heads masked."""
    if anatomy.adapter.coupled:
        raise _refusal(model, anatomy, cut, anatomy.adapter.coupled)
    base = plan_edits.site_edits(model, anatomy, cut, skip_bias=empty_site == "skip")
    arguments = plan_edits.sliced_arguments(model, anatomy, cut)
    expected = _masked_block(model, anatomy, cut, empty_site)
    problems: list[str] = []
    for repair in repairs(model, anatomy, cut):
        edits = base.then(repair)
        edits.arguments = {anatomy.block: arguments} if arguments else {}
        journal = apply_(model, edits)
        try:
            found = _block_output(model, anatomy)
        except Exception as error:  # whatever a forward with wrong counts stumbles over
            problems.append(f"{type(error).__name__}: {error}")
        else:
            gap = difference(found, expected)
            if gap.is_small:
                return edits, journal
            problems.append(f"outputs differ by {gap.largest:.1e}")
        journal.roll_back()
    refusal = _refusal(model, anatomy, cut, _why_not(model, anatomy, cut, expected, problems[0]))
    for problem in problems:
        refusal.add_note(problem)
    raise refusal


def _remove_neurons(model: nn.Module, part: FeedForward, cut: Cut, empty_site: EmptySite) -> tuple[Edits, Journal]:
    """Cut one feed-forward part, if its block then answers as it does with the neurons masked."""
    edits = neuron_edits(model, part, cut, skip_bias=empty_site == "skip")
    expected = _masked_block(model, part, cut, empty_site)
    journal = apply_(model, edits)
    try:
        gap = difference(_block_output(model, part), expected)
    except Exception as error:
        journal.roll_back()
        raise UnsupportedModelError(
            f"{cut.site.id} of {type(model).__name__} ({part.output}) cannot be pruned: without some of its neurons it "
            f"does not run ({type(error).__name__}: {error}). The model was left as it was."
        ) from error
    if gap.is_small:
        return edits, journal
    journal.roll_back()
    raise UnsupportedModelError(
        f"{cut.site.id} of {type(model).__name__} ({part.output}) cannot be pruned exactly: outputs differ by "
        f"{gap.largest:.1e}, so something else reads its neurons. The model was left as it was."
    )


def _why_not(
    model: nn.Module, anatomy: AttentionBlock, cut: Cut, expected: Sequence[torch.Tensor], problem: str
) -> str:
    """What is known of the reason, when no way to repair the counts was right."""
    if not all(bool(answer.isfinite().all()) for answer in expected):
        return "what it answers is not finite, so that nothing can be compared. Look at its weights, and the example"
    if cut.expand:
        return f"{problem}. headprune cannot expand a projection in which queries, keys and values come in this order"
    told = f"{problem}. Its heads are coupled in a way that removal changes, or its code counts on their width"
    return plan_edits.coupling(model, anatomy) or told


def _refusal(model: nn.Module, anatomy: AttentionBlock, cut: Cut, why: str) -> UnsupportedModelError:
    kind = type(model.get_submodule(anatomy.attention)).__name__
    return UnsupportedModelError(
        f"{cut.site.id} of {type(model).__name__} ({kind} at {anatomy.attention}) cannot be pruned exactly: {why}. It "
        "can still be masked: hp.masked(model, mask). The model was left as it was."
    )


def _masked_block(
    model: nn.Module, anatomy: AttentionBlock | FeedForward, cut: Cut, empty_site: EmptySite
) -> list[torch.Tensor]:
    """What the output projection says with the removed heads masked, each time the block calls it."""
    output = model.get_submodule(anatomy.output)
    with torch.no_grad(), called_projections(model), captured_input(output) as contexts:
        run_again(model, anatomy.call)
        factor = torch.zeros(cut.site.num_heads)
        if not cut.is_empty:
            factor[cut.positions] = 1.0
        mask = HeadFactor(cut.site.id, factor)
        answers: list[torch.Tensor] = [output(*mask(output, (context,))) for context in list(contexts)]
    return [torch.zeros_like(a) for a in answers] if cut.is_empty and empty_site == "skip" else answers


def _block_output(model: nn.Module, anatomy: AttentionBlock | FeedForward) -> list[torch.Tensor]:
    output = model.get_submodule(anatomy.output)
    with torch.no_grad(), captured_output(output) as outputs:
        run_again(model, anatomy.call)
    return outputs


def _pruned_heads(heads: HeadMap, cuts: list[Cut]) -> HeadMap:
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


def _write_record(model: nn.Module, outcome: Outcome, about: Mapping[str, str] | None) -> None:
    """Note in the config which heads are left and how, so that the checkpoint can be loaded."""
    old = config_entry.read(model)
    before, after = outcome.before, outcome.after
    done = outcome.edits.renamed(lambda path: config_entry.stored_path(model, path))
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
