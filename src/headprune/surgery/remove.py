"""Removing heads or neurons of one site, and comparing its block with itself as it was under the mask."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headprune.errors import HeadpruneError, UnsupportedModelError, VerificationError
from headprune.heads import HeadMap, HeadMask
from headprune.hooks import (
    HeadFactor,
    SlicedArgument,
    called_projections,
    captured_output,
    raised_to_double,
    scaled_inputs,
)
from headprune.masking import EmptySite, masked
from headprune.memory import check_memory
from headprune.structure.dummy_inputs import example_inputs
from headprune.structure.neurons import FeedForward
from headprune.structure.run import Difference, difference, run, run_again
from headprune.structure.trace import AttentionBlock
from headprune.surgery import plan_edits
from headprune.surgery.apply import Journal, apply_
from headprune.surgery.edits import Cut, Edits
from headprune.surgery.neurons import neuron_edits
from headprune.surgery.plan_edits import repairs
from headprune.types import Batch


@dataclass(frozen=True)
class Way:
    """How a block was cut so that it answers as it should: what also cuts a block that is made alike."""

    repair: int  # which of the ways to repair its counts
    arguments: tuple[SlicedArgument, ...]


def remove_heads(
    model: nn.Module, block: AttentionBlock, cut: Cut, empty_site: EmptySite, known: Way | None = None
) -> tuple[Edits, Journal, Way]:
    """Cut one site; try the ways to repair its counts until the block answers as it does with the heads masked. With a
    way that is `known` to do for a block of its kind, the block is not run."""
    if block.adapter.coupled:
        raise _refusal(model, block, cut, block.adapter.coupled)
    if block.idle:
        raise _refusal(model, block, cut, _why_idle(block))
    base = plan_edits.site_edits(model, block, cut, skip_bias=empty_site == "skip")
    if known is not None:
        edits = edits_by(known, base, model, block, cut)
        return edits, apply_(model, edits), known
    arguments = plan_edits.sliced_arguments(model, block, cut)
    expected = _masked_block(model, block, cut, empty_site)
    problems: list[str] = []
    for number, repair in enumerate(repairs(model, block, cut)):
        edits = base.then(repair).then(Edits(arguments={block.path: arguments} if arguments else {}))
        journal = apply_(model, edits)
        try:
            found = _block_output(model, block)
        except Exception as error:  # whatever a forward with wrong counts stumbles over
            problems.append(f"{type(error).__name__}: {error}")
        else:
            gap = difference(found, expected)
            if gap.is_small:
                return edits, journal, Way(number, arguments)
            problems.append(f"outputs differ by {gap.largest:.1e}")
        journal.roll_back()
    refusal = _refusal(model, block, cut, _why_not(model, block, cut, expected, problems[0]))
    for problem in problems:
        refusal.add_note(problem)
    raise refusal


def edits_by(way: Way, base: Edits, model: nn.Module, block: AttentionBlock, cut: Cut) -> Edits:
    """The edits of a block of the kind for which a way was found."""
    repair = next(itertools.islice(repairs(model, block, cut), way.repair, None))
    kept = cut.kept or cut.site.kept[:1]
    arguments = tuple(dataclasses.replace(argument, kept=kept) for argument in way.arguments)
    return base.then(repair).then(Edits(arguments={block.path: arguments} if arguments else {}))


def remove_neurons(
    model: nn.Module, part: FeedForward, cut: Cut, empty_site: EmptySite, *, is_known: bool = False
) -> tuple[Edits, Journal]:
    """Cut one feed-forward part, if its block then answers as it does with the neurons masked; where that is known of a
    part of its kind, it is not run."""
    edits = neuron_edits(model, part, cut, skip_bias=empty_site == "skip")
    if is_known:
        return edits, apply_(model, edits)
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
    known = plan_edits.coupling(model, block)
    if known is not None:
        return known
    kind = type(model.get_submodule(block.attention)).__name__
    return (
        f"{problem}. Its heads are coupled in a way that removal changes, or its code counts on their width. If it "
        f'reshapes to the width of what comes in, say so: adapters.add("{kind}")(Adapter(reshapes_to_width=True)), '
        "both from headprune.structure.adapters"
    )


def _why_idle(block: AttentionBlock) -> str:
    names = ", ".join(path.removeprefix(f"{block.attention}.") for path in block.idle[:3])
    inputs = ", ".join(block.idle_without[:12]) or "none"
    return (
        f"the example does not run its {names}, which are as wide as its heads and would be left uncut. Pass an "
        f"example that does (example=…); inputs of the model that this one does not have: {inputs}"
    )


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


class EquivalenceCheck:
    """A model with its heads masked, to which it is compared once they are gone."""

    def __init__(
        self, model: nn.Module, mask: HeadMask, heads: HeadMap, empty_site: EmptySite, example: Batch | None
    ) -> None:
        self.model, self.mask, self.heads = model, mask, heads
        self.empty_site, self.example = empty_site, example
        self.expected = self._masked()

    def gap(self) -> Difference:
        """How far the pruned model is from it."""
        try:
            return difference(self._answer(), self.expected)
        except HeadpruneError as error:
            raise VerificationError(f"The pruned model does not run ({error}). It was put back as it was.") from error

    def check_rounding(self, gap: Difference, put_back: Callable[[], None]) -> None:
        """Refuse a pruning whose gap is more than rounding; the model is put back in any case.

        Two orders of summing give two roundings, which may be further apart than equal models should be if a model is
        deep or its answer small, or send a token to another expert. In double precision nothing of that is left.
        """
        found = _in_double(self.model, self._answer)
        put_back()
        exact = _in_double(self.model, self._masked)
        gap_in_double = None if found is None or exact is None else difference(found, exact)
        if gap_in_double is not None and gap_in_double.is_small:
            return
        if gap_in_double is None:
            why = "Double precision would tell whether it is rounding, but the model does not run so: pass verify=False"
        else:
            why = (
                f"In double precision they differ by {gap_in_double.largest:.1e}, so it is not rounding: something "
                "else in the model depends on its heads. It can still be masked: hp.masked(model, mask)"
            )
        raise VerificationError(
            f"The pruned model differs from the masked one by {gap.largest:.1e} (allowed: {gap.allowed:.1e}). It was "
            f"put back as it was. Every block alone was equal. {why}."
        )

    def _answer(self) -> object:
        with torch.no_grad():
            return run(self.model, self.example if self.example is not None else example_inputs(self.model))

    def _masked(self) -> object:
        with masked(self.model, self.mask, heads=self.heads, empty_site=self.empty_site):
            return self._answer()


def _in_double(model: nn.Module, answer: Callable[[], object]) -> object:
    """The model's answer in double precision; None where it does not run so (its code, its device, the memory).

    Modules are raised one at a time. Code that reads the weights of another module needs all of them at once.
    """
    for precision in (raised_to_double, double_precision):
        try:
            with precision(model):
                return answer()
        except Exception:  # whatever a model stumbles over: the other way may do
            continue
    return None


@contextmanager
def double_precision(model: nn.Module) -> Iterator[None]:
    """Weights and buffers in float64 until the block ends; then the very tensors that were there before."""
    weights = [(parameter, parameter.data) for parameter in model.parameters() if parameter.is_floating_point()]
    check_memory(8 * sum(value.numel() for _, value in weights), "A copy in double precision", "Pass verify=False.")
    buffers = [
        (module._buffers, name, value)
        for module in model.modules()
        for name, value in module._buffers.items()
        if value is not None and value.is_floating_point()
    ]
    try:
        for parameter, value in weights:
            parameter.data = value.double()
        for table, name, value in buffers:
            table[name] = value.double()
        yield
    finally:
        for parameter, value in weights:
            parameter.data = value
        for table, name, value in buffers:
            table[name] = value
