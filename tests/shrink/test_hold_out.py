"""A quarter of the examples, whatever the batches are like."""

from __future__ import annotations

import pytest
import torch

from headprune.errors import DataError
from headprune.shrink.hold_out import held_out


def numbered(*sizes):
    """Batches whose examples are numbers from 0 on."""
    start, found = 0, []
    for size in sizes:
        found.append({"input_ids": torch.arange(start, start + size)[:, None], "scale": torch.tensor(2.0), "name": "a"})
        start += size
    return found


def examples(batches):
    return [int(one) for batch in batches for one in batch["input_ids"][:, 0]]


@pytest.mark.parametrize("sizes", [(24, 24), (8,) * 8, (16, 16, 2), (32, 32, 32, 4), (1, 1, 1, 97), (1,) * 40])
def test_every_fourth_example_is_held_out(sizes):
    """And none is lost, none is on both sides, and no batch is empty."""
    fitted, held = held_out(numbered(*sizes))
    total = sum(sizes)
    assert examples(held) == list(range(3, total, 4))
    assert sorted(examples(fitted) + examples(held)) == list(range(total))
    assert all(len(batch["input_ids"]) for batch in (*fitted, *held))
    assert all(batch["name"] == "a" and float(batch["scale"]) == 2.0 for batch in (*fitted, *held))


def test_a_batch_that_cannot_be_cut_stays_whole():
    """Patches of all images in one tensor belong to their batch."""
    whole = [{**batch, "pixel_values": torch.zeros(5, 3)} for batch in numbered(*[8] * 8)]
    fitted, held = held_out(whole)
    assert (len(fitted), len(held)) == (6, 2)
    assert all(len(batch["input_ids"]) == 8 for batch in (*fitted, *held))
    with pytest.raises(DataError, match="The 2 batches cannot be cut into examples"):
        held_out([{**batch, "pixel_values": torch.zeros(5, 3)} for batch in numbered(20, 20)])
