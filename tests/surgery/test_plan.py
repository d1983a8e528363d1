"""What pruning would do."""

from __future__ import annotations

import copy

import headprune as hp
from tests.families.tiny import tiny_model
from tests.surgery.toy import kept, state


def test_a_plan_tells_what_pruning_does_and_does_nothing():
    """Parameters and MACs before and after are those of the model before and after."""
    model = tiny_model("llama")
    before = state(model)
    mask = kept(model, decoder_0=[0, 1], decoder_1=[])
    plan = hp.plan(model, mask)
    assert state(model) == before
    pruned = hp.prune_(copy.deepcopy(model), mask)
    assert plan.parameters_before.total == sum(p.numel() for p in model.parameters())
    assert plan.parameters_after.total == sum(p.numel() for p in pruned.parameters())
    assert plan.after.to_dict()["sites"] == hp.find_heads(pruned).to_dict()["sites"]
    assert plan.to_dict()["removed"] == {"decoder.0": [2, 3], "decoder.1": [0, 1, 2, 3]}
    assert "decoder.0: 4 -> 2 heads, 2 -> 1 KV heads" in str(plan)
    assert plan.macs_after.total < plan.macs_before.total
