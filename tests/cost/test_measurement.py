"""Memory and time, with an A/A control."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import headprune as hp
from headprune.cost.measurement import cache_bytes_per_token, interleaved, peak_memory, ratio, sized_example
from tests.families.tiny import tiny_model


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


def test_measuring_on_an_example_finds_heads_on_it():
    """Also where none can be made from a config."""
    model = nn.Module()
    model.attention = nn.MultiheadAttention(16, 4, batch_first=True)
    model.forward = lambda x: model.attention(x, x, x)[0]
    assert hp.measure(model.eval(), example={"x": torch.randn(2, 5, 16)}, repeats=0).heads == 4


@pytest.mark.parametrize("family", ["clip", "siglip", "mpt", "roberta", "bert", "gpt2", "bart"])
def test_a_length_is_cut_to_what_the_model_takes(family):
    """To all of it: the part for text may say it, and RoBERTa counts from the padding on."""
    model = tiny_model(family)
    longest = {"roberta": 63}.get(family, 64)
    assert sized_example(model, 1, 10_000)["input_ids"].shape == (1, longest)
    assert hp.measure(model, length=10_000, repeats=0).length == longest
