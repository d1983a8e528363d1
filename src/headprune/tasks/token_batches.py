"""Batches of examples of similar length with about the same number of tokens each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from headprune.errors import DataError


class TokenBatches:
    """A batch sampler: rows x longest row <= `tokens`, in another order every epoch.

    Examples of equal length change places from epoch to epoch, so that batches mix but their number never changes:
    schedules and resuming count on it. For several processes the number is a multiple of theirs (some batches come
    twice), because a process without a batch would leave the others waiting.
    """

    def __init__(self, lengths: Sequence[int], tokens: int, *, seed: int = 0, processes: int = 1) -> None:
        self.lengths = np.asarray(lengths)
        if not len(self.lengths) or not int(self.lengths.min()):
            raise DataError("Batches by tokens need examples that are lists of tokens. Use --batch-size instead.")
        if int(self.lengths.max()) > tokens:
            row = int(self.lengths.argmax())
            raise DataError(
                f"Example {row + 1} has {self.lengths[row]} tokens, a batch takes {tokens}. Raise --batch-tokens, or "
                "lower --max-length to leave such examples out."
            )
        self.seed, self.processes, self.epoch = seed, processes, 0
        self.cuts = _cuts(np.sort(self.lengths).tolist(), tokens)

    @property
    def sampler(self) -> TokenBatches:
        """accelerate looks for `set_epoch` here when it deals batches out to processes."""
        return self

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        batches = len(self.cuts) - 1
        return batches + -batches % self.processes

    def __iter__(self) -> Iterator[list[int]]:
        generator = np.random.default_rng((self.seed, self.epoch))
        mixed = generator.permutation(len(self.lengths))
        rows = mixed[np.argsort(self.lengths[mixed], kind="stable")]
        batches = [rows[start:end].tolist() for start, end in zip(self.cuts, self.cuts[1:], strict=False)]
        order = generator.permutation(len(batches)).tolist()
        for place in order + order[: -len(batches) % self.processes]:
            yield batches[place]


def _cuts(lengths: Sequence[int], tokens: int) -> list[int]:
    """Where batches begin in the sorted examples, and where the last one ends."""
    cuts = [0]
    for row, length in enumerate(lengths):
        if (row - cuts[-1] + 1) * length > tokens:  # sorted: the newest is the longest
            cuts.append(row)
    return [*cuts, len(lengths)]
