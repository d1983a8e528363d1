"""Batches by tokens."""

from __future__ import annotations

import numpy as np
import pytest

from headprune.errors import DataError
from headprune.tasks.token_batches import TokenBatches


def test_token_batches_hold_every_example_once_and_no_more_tokens_than_allowed():
    """In every epoch, in another order, always the same number."""
    lengths = np.random.default_rng(0).integers(2, 30, 500).tolist()
    sampler = TokenBatches(lengths, 120, seed=1)
    epochs = []
    for epoch in (0, 1, 0):
        sampler.set_epoch(epoch)
        batches = list(sampler)
        assert len(batches) == len(sampler)
        assert sorted(row for batch in batches for row in batch) == list(range(500))
        assert all(len(batch) * max(lengths[row] for row in batch) <= 120 for batch in batches)
        epochs.append(batches)
    assert epochs[0] == epochs[2] != epochs[1]
    padded = sum(len(batch) * max(lengths[row] for row in batch) for batch in epochs[0])
    assert sum(lengths) / padded > 0.9
    with pytest.raises(DataError, match="a batch takes 20"):
        TokenBatches(lengths, 20)


def test_token_batches_come_out_even_for_several_processes():
    """Nobody waits for a batch that does not come."""
    sampler = TokenBatches([4] * 10, 8, processes=3)
    assert len(sampler) == len(list(sampler)) == 6
