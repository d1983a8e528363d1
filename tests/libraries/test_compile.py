"""torch.compile of pruned models."""

from __future__ import annotations

import pytest
import torch

import headprune as hp
from headprune.structure.dummy_inputs import example_inputs
from headprune.structure.run import difference
from tests.families.tiny import tiny_model


@pytest.mark.parametrize("family", ["bert", "t5", "mpnet", "bloom", "llama"])
def test_pruned_models_compile(family):
    """With ragged and emptied sites."""
    model = tiny_model(family)
    heads = hp.find_heads(model)
    hp.prune_(
        model,
        hp.HeadMask.full(heads).without(
            heads.sites[0].id, *(f"{heads.sites[-1].id}:{i}" for i in heads.sites[-1].groups[0])
        ),
    )
    batch = example_inputs(model)
    with torch.no_grad():
        assert difference(torch.compile(model, backend="eager")(**batch), model(**batch)).is_small
    torch._dynamo.reset()
