"""What the layers remember of earlier segments."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headprune.errors import UnsupportedModelError
from headprune.types import Config


class SegmentMemory:
    """The last inputs of every layer, before their norm; no gradient flows into them (Dai et al. 2019).

    A model returns one as `past_key_values` and takes it with the next segment. `generate` carries it along.
    """

    is_compileable = False  # asked by `generate`

    def __init__(self, layers: Sequence[Tensor], seen: int | None = None) -> None:
        self.layers = list(layers)  # of (batch, positions, width)
        self.seen = seen if seen is not None else len(self)  # positions of the text so far, forgotten ones too

    @classmethod
    def zeros(cls, config: Config, batch: int, device: torch.device | str = "cpu") -> SegmentMemory:
        """A full memory of zeros, which is attended to: how Shim et al.'s code begins."""
        shape = (batch, config.memory_length, config.hidden_size)
        return cls([torch.zeros(shape, device=device) for _ in range(config.num_hidden_layers)])

    def __len__(self) -> int:
        """Positions that are remembered."""
        return self.layers[0].shape[1] if self.layers else 0

    def followed_by(self, inputs: Sequence[Tensor], limit: int) -> SegmentMemory:
        """The memory after a segment, given what its layers received."""
        both = zip(self.layers, inputs, strict=True)
        longer = [torch.cat([old.to(new.device, new.dtype), new.detach()], dim=1) for old, new in both]
        return SegmentMemory(_last(longer, limit), self.seen + inputs[0].shape[1])

    @classmethod
    def of(cls, inputs: Sequence[Tensor], limit: int) -> SegmentMemory:
        """The memory after a first segment."""
        return cls(_last([tensor.detach() for tensor in inputs], limit), inputs[0].shape[1])

    def check(self, layers: int, batch: int, width: int) -> None:
        """Whether a model of this shape can use it for this batch."""
        found = [tuple(layer.shape) for layer in self.layers]
        if len(found) != layers or any(shape[0] != batch or shape[2] != width for shape in found):
            raise UnsupportedModelError(
                f"The memory has {len(found)} layers, the first (batch, positions, width) = {found[:1]}; expected "
                f"{layers} layers for a batch of {batch} and a width of {width}. Start without memory, or give the one "
                "that this model returned for the same rows."
            )

    def repeated(self, times: int) -> SegmentMemory:
        """Every row so many times, one after another."""
        return SegmentMemory([layer.repeat_interleave(times, dim=0) for layer in self.layers], self.seen)

    # What `generate` asks.

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """How many of the tokens that `generate` is given are behind this memory already: none. As `forward`, it takes
        the tokens that follow."""
        return 0

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.layers = [layer.index_select(0, beam_idx.to(layer.device)) for layer in self.layers]


def _last(layers: Sequence[Tensor], limit: int) -> list[Tensor]:
    return [layer[:, max(0, layer.shape[1] - limit) :] for layer in layers]
