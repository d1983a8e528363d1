"""Removing heads or neurons of one site, and comparing its block with itself as it was under the mask."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from headprune.equality import difference
from headprune.errors import UnsupportedModelError
from headprune.hooks import HeadFactor, called_projections, captured_output, scaled_inputs
from headprune.masking import EmptySite
from headprune.structure.neurons import FeedForward
from headprune.structure.run import run_again
from headprune.structure.trace import AttentionBlock
from headprune.surgery import plan_edits
from headprune.surgery.apply import Journal, apply_
from headprune.surgery.edits import Edits
from headprune.surgery.head_counts import repairs
from headprune.surgery.neurons import neuron_edits
from headprune.surgery.units import Cut


def remove_heads(model: nn.Module, block: AttentionBlock, cut: Cut, empty_site: EmptySite) -> tuple[Edits, Journal]:
    """Cut one site; try the ways to repair its counts until the block answers as it does with the heads masked."""
    if block.adapter.coupled:
        raise _refusal(model, block, cut, block.adapter.coupled)
    base = plan_edits.site_edits(model, block, cut, skip_bias=empty_site == "skip")
    arguments = plan_edits.sliced_arguments(model, block, cut)
    expected = _masked_block(model, block, cut, empty_site)
    problems: list[str] = []
    for repair in repairs(model, block, cut):
        edits = base.then(repair).then(Edits(arguments={block.path: arguments} if arguments else {}))
        journal = apply_(model, edits)
        try:
            found = _block_output(model, block)
        except Exception as error:  # whatever a forward with wrong counts stumbles over
            problems.append(f"{type(error).__name__}: {error}")
        else:
            gap = difference(found, expected)
            if gap.is_small:
                return edits, journal
            problems.append(f"outputs differ by {gap.largest:.1e}")
        journal.roll_back()
    refusal = _refusal(model, block, cut, _why_not(model, block, cut, expected, problems[0]))
    for problem in problems:
        refusal.add_note(problem)
    raise refusal


def remove_neurons(model: nn.Module, part: FeedForward, cut: Cut, empty_site: EmptySite) -> tuple[Edits, Journal]:
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


def _why_not(model: nn.Module, block: AttentionBlock, cut: Cut, expected: Sequence[Tensor], problem: str) -> str:
    """What is known of the reason, when no way to repair the counts was right."""
    if not all(bool(answer.isfinite().all()) for answer in expected):
        return "what it answers is not finite, so that nothing can be compared. Look at its weights, and the example"
    if cut.expand:
        return f"{problem}. headprune cannot expand a projection in which queries, keys and values come in this order"
    unknown = f"{problem}. Its heads are coupled in a way that removal changes, or its code counts on their width"
    return plan_edits.coupling(model, block) or unknown


def _refusal(model: nn.Module, block: AttentionBlock, cut: Cut, why: str) -> UnsupportedModelError:
    kind = type(model.get_submodule(block.attention)).__name__
    return UnsupportedModelError(
        f"{cut.site.id} of {type(model).__name__} ({kind} at {block.attention}) cannot be pruned exactly: {why}. It "
        "can still be masked: hp.masked(model, mask). The model was left as it was."
    )


def _masked_block(
    model: nn.Module, block: AttentionBlock | FeedForward, cut: Cut, empty_site: EmptySite
) -> list[Tensor]:
    """What the output projection says with the removed heads masked, each time the block calls it."""
    factor = torch.zeros(cut.site.num_heads)
    if not cut.is_empty:
        factor[cut.positions] = 1.0
    with scaled_inputs({model.get_submodule(block.output): HeadFactor(cut.site.id, factor)}):
        answers = _block_output(model, block)
    return [torch.zeros_like(a) for a in answers] if cut.is_empty and empty_site == "skip" else answers


def _block_output(model: nn.Module, block: AttentionBlock | FeedForward) -> list[Tensor]:
    module, output = model.get_submodule(block.path), model.get_submodule(block.output)
    with torch.no_grad(), called_projections(module), captured_output(output) as outputs:
        run_again(model, block.call)
    return outputs
