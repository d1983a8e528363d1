"""Shapes and schedules of the papers' translators."""

from __future__ import annotations

import math

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM

from headprune.errors import DataError
from headprune.tasks.translation.presets import PRESETS, Shape, new_translator


@pytest.mark.parametrize(("name", "millions"), [("iwslt", 36.7), ("base", 60.6), ("large", 217.4)])
def test_the_papers_models_have_their_shape(name, millions):
    """Layers, heads and parameters at the papers' size, on the meta device."""

    class Vocabulary:
        pad_token_id, bos_token_id, eos_token_id = 0, 1, 2

        def __len__(self):
            return PRESETS[name].shape.vocabulary

    with torch.device("meta"):
        model = new_translator(PRESETS[name].shape, Vocabulary(), 0)
    count = sum(p.numel() for n, p in model.named_parameters() if "embed_positions" not in n)
    assert count / 1e6 == pytest.approx(millions, abs=0.3)
    shape, config = PRESETS[name].shape, model.config
    assert (config.encoder_layers, config.decoder_layers) == (6, 6)
    assert (config.encoder_attention_heads, config.d_model) == (shape.heads, shape.width)


def test_a_shape_that_does_not_divide_is_refused():
    """Width among heads; norms of no paper."""
    with pytest.raises(DataError, match="does not divide"):
        Shape(width=100, heads=8)
    with pytest.raises(DataError, match="pre or post"):
        Shape(norm="middle")


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_new_models_are_ordinary_checkpoints(tmp_path, tokenizer, norm):
    """Saved, loaded by the Auto class, they say the same."""
    model = new_translator(Shape(layers=1, width=16, heads=2, feed_forward=16, norm=norm, positions=32), tokenizer, 3)
    model.eval().save_pretrained(tmp_path)
    inputs = {"input_ids": torch.tensor([[5, 6, 2]]), "decoder_input_ids": torch.tensor([[1, 7]])}
    with torch.no_grad():
        again = AutoModelForSeq2SeqLM.from_pretrained(tmp_path).eval()(**inputs).logits
        assert torch.equal(again, model(**inputs).logits)
    assert math.isfinite(float(again.sum()))
