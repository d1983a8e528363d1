"""`confidence` and `entropy`."""

from __future__ import annotations

import pytest
import torch

import headprune as hp
from headprune.structure.dummy_inputs import example_inputs
from tests.families.tiny import tiny_model
from tests.scoring.toy import labelled, rows


@pytest.mark.parametrize("family", ["bert", "gpt2", "t5", "siglip", "mpnet", "gpt_oss", "swin"])
def test_attention_scores_equal_those_of_the_reported_maps(family):
    """Entropy is at most log of the keys; confidence is at least one over the keys. Nothing stays switched."""
    model = tiny_model(family)
    batch = example_inputs(model) if family == "siglip" else labelled(model, family)
    before = model.config._attn_implementation
    confidence = rows(hp.score(model, [batch], method="confidence", exclude_end=False))
    entropy = rows(hp.score(model, [batch], method="entropy"))
    assert ((confidence > 0) & (confidence <= 1)).all()
    assert (entropy <= 1e-6).all()
    assert model.config._attn_implementation == before
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in model.modules())


def test_confidence_by_hand():
    """The mean over real positions of the largest weight, from the model's own maps."""
    model = tiny_model("bert", attn_implementation="eager")
    batch = labelled(model, "bert")
    with torch.no_grad():
        maps = model(**batch, output_attentions=True).attentions[0]
    largest = maps.amax(-1)  # (batch, heads, queries)
    expected = (largest[0].mean(-1) + largest[1, :, :5].mean(-1)) / 2
    found = hp.score(model, [batch], method="confidence").scores["encoder.0"]
    assert found == pytest.approx(expected.tolist(), rel=1e-5)


def test_attention_to_the_end_token_does_not_count_for_confidence():
    """Voita et al. leave it out before taking the maximum."""
    model = tiny_model("gpt2", attn_implementation="eager")
    batch = labelled(model, "gpt2")
    batch["input_ids"][:, 0] = 2  # the end token of the tiny config
    with torch.no_grad():
        maps = model(**batch, output_attentions=True).attentions[0].clone()
    maps[..., 0] = 0
    largest = maps.amax(-1)
    expected = (largest[0].mean(-1) + largest[1, :, :5].mean(-1)) / 2
    found = hp.score(model, [batch], method="confidence").scores["decoder.0"]
    assert found == pytest.approx(expected.tolist(), rel=1e-5)
