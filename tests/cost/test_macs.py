"""Parameters and multiply-accumulates, counted by hand and by others."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import headprune as hp
from headprune.cost.macs import count_macs, count_parameters
from headprune.structure.dummy_inputs import example_inputs
from headprune.structure.run import run
from tests.families.tiny import FAMILIES, tiny_model


def test_macs_of_bert_by_hand():
    """Projections 4 d² per token, attention 2 L d, feed-forward 2 d f, head d² + d c once per example."""
    d, f, layers, batch, length, labels = 32, 48, 2, 2, 7, 2
    model = tiny_model("bert")
    macs = count_macs(model, hp.find_heads(model), example_inputs(model, batch=batch, length=length))
    tokens = batch * length
    assert macs.parts == {
        "projections": layers * tokens * 4 * d * d,
        "attention": layers * tokens * 2 * length * d,
        "feed_forward": layers * tokens * 2 * d * f + batch * d * d,  # the pooler belongs to the base model
        "embeddings": 0,
        "head": batch * d * labels,
    }


@pytest.mark.parametrize("family", FAMILIES)
def test_macs_agree_with_torchs_counter_under_eager_attention(family):
    """Every matrix product is seen; with eager attention torch's counter needs no help."""
    model = tiny_model(family, attn_implementation="eager").requires_grad_(False)
    model.set_experts_implementation("eager")
    batch = example_inputs(model)
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        run(model, batch)
    macs = count_macs(model, hp.find_heads(model), batch)
    assert macs.total == counter.get_total_flops() // 2
    assert macs.total == sum(macs.parts.values())
    assert all(part >= 0 for part in macs.parts.values())
    assert macs.parts["projections"] > 0
    assert macs.parts["attention"] > 0


def test_fused_attention_counts_as_much_as_eager():
    """The CPU kernel, which torch's counter does not know."""
    counts = []
    for attention in ("eager", "sdpa"):
        model = tiny_model("bert", attn_implementation=attention)
        counts.append(count_macs(model, hp.find_heads(model), example_inputs(model)))
    assert counts[0] == counts[1]


@pytest.mark.parametrize("family", ["mixtral", "gpt_oss"])
def test_fused_experts_count_as_much_as_eager_ones(family):
    """Also as a share: left out, half of the heads would look like more of the model than they are."""
    counts = []
    for experts in ("eager", "grouped_mm"):
        model = tiny_model(family)
        model.set_experts_implementation(experts)
        counts.append(count_macs(model, hp.find_heads(model), example_inputs(model)))
    assert counts[0] == counts[1]
    assert counts[0].parts["feed_forward"] > 0


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "t5", "vit", "siglip", "gpt_oss"])
def test_parameters_by_part_add_up(family):
    """Shared ones once."""
    model = tiny_model(family)
    count = count_parameters(model, hp.find_heads(model))
    assert count.total == sum(p.numel() for p in model.parameters()) == sum(count.parts.values())
    assert count.parts["projections"] > 0
