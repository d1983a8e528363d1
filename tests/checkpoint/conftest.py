"""A pruned classifier and its checkpoint."""

from __future__ import annotations

import pytest

import headprune as hp
from tests.families.tiny import tiny_model


@pytest.fixture
def pruned():
    model = tiny_model("bert")
    mask = hp.HeadMask.full(hp.find_heads(model)).without("encoder.0", "encoder.1:2")
    return hp.prune_(model, mask, about={"by": "a coin", "on": "toy data"})


@pytest.fixture
def folder(pruned, tmp_path):
    pruned.save_pretrained(tmp_path / "small")
    return tmp_path / "small"
