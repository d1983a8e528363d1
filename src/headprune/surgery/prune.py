"""`prune_`: removing heads for real."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from headprune.checkpoint import config_entry
from headprune.equality import Difference
from headprune.errors import MaskError, UnsupportedModelError, VerificationError
from headprune.heads import HeadMap, HeadMask
from headprune.hooks import joined_heads
from headprune.masking import EmptySite
from headprune.structure.find import examined, model_structure, unwrapped
from headprune.structure.memory import ModelStructure, known_structure, remember
from headprune.structure.modes import eval_mode
from headprune.surgery.apply import Journal, tie_again_
from headprune.surgery.edits import Edits
from headprune.surgery.equivalence import EquivalenceCheck
from headprune.surgery.preconditions import matching_repair, refuse_unfit_models
from headprune.surgery.record import added_biases, write_record
from headprune.surgery.remove import remove_heads, remove_neurons
from headprune.surgery.units import Cut, Gqa, cut_site
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
    `empty_site="skip"`: a site that loses all heads adds nothing at all, its output bias included.
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
    model = unwrapped(model)
    mask = _checked_mask(mask, gqa, empty_site)
    repair = matching_repair(model, mask, empty_site, example)
    with torch.inference_mode(False):
        pruning = _prune(model, mask, gqa, empty_site, verify, example, structure)
    if not pruning.journals:
        return pruning
    if repair is not None:
        about = {**(about or {}), "recovered": str(repair["method"])}
        biases = Edits(biases=added_biases(model, pruning.before, repair))
        pruning = dataclasses.replace(pruning, edits=pruning.edits.then(biases))
    write_record(model, pruning.before, pruning.after, pruning.edits, about)
    config_entry.forget_repair(model)
    for site in pruning.after:
        if site.num_heads != site.original_num_heads:
            config_entry.mark_pruned(model.get_submodule(site.path))
    _forget_unpacking(model)
    tie_again_(model)
    remember(model, pruning.after)
    return pruning


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
        return _remove_all(model, structure, cuts, empty_site)
    check = EquivalenceCheck(model, mask, structure.heads, empty_site, example)
    pruning = _remove_all(model, structure, cuts, empty_site)
    try:
        gap = check.gap()
        if not gap.is_small:
            check.check_rounding(gap, pruning.undo)
            pruning = _remove_all(model, structure, cuts, empty_site)
    except BaseException:
        pruning.undo()
        raise
    return dataclasses.replace(pruning, difference=gap)


def _remove_all(model: nn.Module, structure: ModelStructure, cuts: list[Cut], empty_site: EmptySite) -> Pruning:
    """The cuts, one after another, each compared with its block as it was."""
    edits, journals = Edits(), []
    try:
        with eval_mode(model), joined_heads(model):  # dropout would make every block differ from itself
            for cut in cuts:
                if cut.site.is_neurons:
                    more, journal = remove_neurons(model, structure.feed_forward[cut.site.id], cut, empty_site)
                else:
                    more, journal = remove_heads(model, structure.blocks[cut.site.id], cut, empty_site)
                journals.append(journal)
                edits = edits.then(more)
    except BaseException:
        for journal in reversed(journals):
            journal.roll_back()
        raise
    return Pruning(structure.heads, _heads_after(structure.heads, cuts), edits, tuple(journals))


def _heads_after(heads: HeadMap, cuts: list[Cut]) -> HeadMap:
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
