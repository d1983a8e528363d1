"""Ablations that reuse what does not change."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import headprune as hp
from tests.families.tiny import tiny_model
from tests.scoring.toy import ToyAttention, labelled


@pytest.mark.parametrize(
    "family", ["bert", "mpnet", "vit", "gpt2", "llama", "qwen3", "opt", "t5", "bart", "marian", "whisper", "m2m_100"]
)
@pytest.mark.parametrize("method", ["ablation", "all-but-one"])
def test_the_ablation_engine_equals_the_plain_way(family, method):
    """Bit for bit, with reuse active."""
    model = tiny_model(family)
    batch = labelled(model, family)
    quick = hp.score(model, [batch, labelled(model, family, seed=2)], method=method)
    plain = hp.score(model, [batch, labelled(model, family, seed=2)], method=method, reuse=False)
    assert quick.scores == plain.scores
    assert quick.options["share_reused"] > 0.3
    assert plain.options["share_reused"] == 0.0


def test_reuse_is_dropped_where_it_is_not_valid():
    """A model that changes its own cached tensors in place is run as a whole."""

    class InPlace(ToyAttention):
        def forward(self, x, labels=None):
            value = self.v(x)
            split = [f(x).unflatten(-1, (2, 1)).transpose(1, 2) for f in (self.q, self.k)]
            context = F.scaled_dot_product_attention(*split, value.unflatten(-1, (2, 1)).transpose(1, 2))
            output = self.o(context.transpose(1, 2).flatten(2))
            if not torch.is_grad_enabled():
                value.mul_(2.0)  # poisons what was recorded
            return output + value

    torch.manual_seed(0)
    model = nn.Sequential()
    model.block = InPlace()
    model.forward = lambda x, labels=None: model.block(x)
    batch = {"x": torch.randn(3, 4, 2), "labels": torch.zeros(3)}
    heads = hp.find_heads(model, example={"x": torch.randn(2, 3, 2)})
    found = [
        hp.score(model, [batch], method="ablation", heads=heads, loss=lambda o, b: o.sum((1, 2)), reuse=reuse)
        for reuse in (True, False)
    ]
    assert found[0].scores == found[1].scores
    assert found[0].options["share_reused"] == 0.0
