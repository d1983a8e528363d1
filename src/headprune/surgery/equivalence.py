"""Whether a pruned model answers as the masked one did: as the models are, and where that differs, without rounding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from headprune.equality import Difference, difference
from headprune.errors import HeadpruneError, VerificationError
from headprune.heads import HeadMap, HeadMask
from headprune.masking import EmptySite, masked
from headprune.structure.run import run


class EquivalenceCheck:
    """A model with its heads masked, to which it is compared once they are gone."""

    def __init__(
        self, model: nn.Module, mask: HeadMask, heads: HeadMap, empty_site: EmptySite, example: Mapping[str, Any] | None
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

    def _answer(self) -> Any:
        with torch.no_grad():
            return run(self.model, self.example)

    def _masked(self) -> Any:
        with masked(self.model, self.mask, heads=self.heads, empty_site=self.empty_site):
            return self._answer()


def _in_double(model: nn.Module, answer: Callable[[], Any]) -> Any:
    """The model's answer in double precision; None where it does not run so (its code, its device, the memory)."""
    try:
        with double_precision(model):
            return answer()
    except Exception:
        return None


@contextmanager
def double_precision(model: nn.Module) -> Iterator[None]:
    """Weights and buffers in float64 until the block ends; then the very tensors that were there before."""
    weights = [(parameter, parameter.data) for parameter in model.parameters() if parameter.is_floating_point()]
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
