"""Known numbers of Michel et al. 2019."""

from __future__ import annotations

import pytest
from transformers import BertConfig, BertForSequenceClassification

import headprune as hp
from headprune.cost.macs import count_parameters


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
