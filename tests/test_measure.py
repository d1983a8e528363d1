"""Counting and timing."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import BertConfig, BertForSequenceClassification

import headprune as hp
from headprune.cost.macs import count_macs, count_parameters
from headprune.cost.measurement import cache_bytes_per_token, interleaved, peak_memory, ratio
from headprune.structure.example import example_inputs
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


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "t5", "vit", "siglip", "gpt_oss"])
def test_parameters_by_part_add_up(family):
    """Shared ones once."""
    model = tiny_model(family)
    count = count_parameters(model, hp.find_heads(model))
    assert count.total == sum(p.numel() for p in model.parameters()) == sum(count.parts.values())
    assert count.parts["projections"] > 0


def test_a_head_is_its_share_of_a_layers_attention():
    """Michel et al.: one of 16 heads is 6.25 % of the layer's attention parameters, one of 12 is 8.33 %."""
    for heads, share in ((16, 0.0625), (12, 1 / 12)):
        config = BertConfig(
            hidden_size=heads * 8, num_attention_heads=heads, num_hidden_layers=1, intermediate_size=8, vocab_size=20
        )
        model = BertForSequenceClassification(config).eval()
        whole = count_parameters(model, hp.find_heads(model)).parts["projections"]
        bias = heads * 8  # of the output projection, which stays
        plan = hp.plan(model, hp.HeadMask.full(hp.find_heads(model)).without("encoder.0:3"))
        removed = plan.parameters_before.total - plan.parameters_after.total
        assert removed / (whole - bias) == pytest.approx(share)


def test_the_cache_shrinks_with_its_heads():
    """Bytes per token: 2 (keys, values) x KV heads x width x 4 bytes x layers; a whole group less is a group less."""
    model = tiny_model("llama")
    assert cache_bytes_per_token(model, hp.find_heads(model)) == 2 * 2 * 8 * 4 * 2
    hp.prune_(model, hp.HeadMask.full(hp.find_heads(model)).without("decoder.0:0", "decoder.0:1"))
    assert cache_bytes_per_token(model, hp.find_heads(model)) == 2 * 2 * 8 * 4 * 2 - 2 * 8 * 4
    t5 = tiny_model("t5")
    assert cache_bytes_per_token(t5, hp.find_heads(t5)) == 2 * 4 * 8 * 4 * 2
    bert = tiny_model("bert")
    assert cache_bytes_per_token(bert, hp.find_heads(bert)) is None


def test_peak_memory_is_what_is_held_at_once():
    """Two buffers of a megabyte, of which two live together; a third would be more."""

    def task():
        a = torch.zeros(2**18)
        b = a + 1
        del a
        return (b * 2).sum()

    assert 2 * 2**20 <= peak_memory(task, torch.device("cpu")) < 2 * 2**20 + 4096


def test_a_pruned_model_holds_less():
    """Peak memory and MACs go down with heads."""
    model = tiny_model("bert")
    pruned = hp.prune_(copy.deepcopy(model), hp.HeadMask.random(hp.find_heads(model), keep=0.25, seed=0))
    whole, small = (hp.measure(m, batch=4, length=32, repeats=0) for m in (model, pruned))
    assert small.macs.total < whole.macs.total
    assert small.parameters.total < whole.parameters.total
    assert small.peak_memory <= whole.peak_memory
    assert (whole.heads, small.heads) == (8, 2)
    assert whole.timing is None


def test_times_come_with_an_a_a_control():
    """And a speed-up against another model, taken in the same rounds."""
    model = tiny_model("bert")
    result = hp.measure(model, batch=2, length=16, against=copy.deepcopy(model), repeats=5)
    assert result.timing.repeats == 5
    assert result.timing.low <= result.timing.median <= result.timing.high
    assert result.timing.control_spread[0] <= result.timing.control <= result.timing.control_spread[1]
    assert 0.2 < result.timing.speedup < 5
    assert result.timing.examples_per_second == pytest.approx(2 / result.timing.median)
    assert result.to_dict()["macs"]["total"] == result.macs.total


def test_rounds_are_interleaved_and_turn():
    """Every task once a round, none always first."""
    order = []
    interleaved([lambda: order.append("a"), lambda: order.append("b")], repeats=4, warmup=0)
    assert "".join(order) == "abbaabba"
    assert ratio([2.0, 4.0, 6.0], [1.0, 1.0, 2.0])[0] == 3.0
