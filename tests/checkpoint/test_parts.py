"""Models inside of models: which checkpoint tells of which pruning."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    BartForCausalLM,
    BertModel,
    CLIPVisionModel,
    EncoderDecoderModel,
)

import headprune as hp
from headprune.errors import CheckpointError
from headprune.structure.run import difference
from tests.families.tiny import answer_of, full_mask, tiny_config, tiny_model


def test_a_pruned_base_model_is_known_to_the_model_around_it(tmp_path):
    """Original indices, and a checkpoint that loads."""
    model = tiny_model("bert")
    hp.prune_(model.bert, full_mask(model.bert).without("encoder.0:1"))
    site = hp.find_heads(model)["encoder.0"]
    assert (site.kept, site.original_num_heads) == ((0, 2, 3), 4)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    assert difference(answer_of(loaded), answer_of(model)).largest == 0.0


def test_a_part_whose_config_does_not_tell_is_not_saved(tmp_path):
    """A tower of a pruned CLIP, and a model pruned inside a plain module: refused, not unloadable."""
    clip = tiny_model("clip")
    hp.prune_(clip, full_mask(clip).without("vision.encoder.0:1"))
    with pytest.raises(CheckpointError, match="part of another"):
        clip.vision_model.save_pretrained(tmp_path / "tower")
    clip.save_pretrained(tmp_path / "clip")
    with pytest.raises(CheckpointError, match="load the whole and take the part"):
        CLIPVisionModel.from_pretrained(tmp_path / "clip")

    class Around(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = tiny_model("bert")

        def forward(self, input_ids):
            return self.inner(input_ids).logits

    around = Around()
    batch = {"input_ids": torch.tensor([[3, 4, 5]])}
    hp.prune_(around, hp.HeadMask.full(hp.find_heads(around, example=batch)).without("encoder.0:1"), example=batch)
    with pytest.raises(CheckpointError, match="part of another"):
        around.inner.save_pretrained(tmp_path / "inner")


def test_a_pruned_bert_in_an_encoder_decoder_saves_and_loads(tmp_path):
    """Its own config tells, and is part of the whole's."""
    encoder = BertModel(tiny_config("bert")).eval()
    hp.prune_(encoder, full_mask(encoder).without("encoder.0:1"))
    decoder = tiny_model("bert", auto=AutoModelForCausalLM, is_decoder=True, add_cross_attention=True)
    model = EncoderDecoderModel(encoder=encoder, decoder=decoder).eval()
    batch = {"input_ids": torch.tensor([[3, 4, 5]]), "decoder_input_ids": torch.tensor([[6, 7]])}
    expected = answer_of(model, batch).logits
    model.save_pretrained(tmp_path)
    loaded = EncoderDecoderModel.from_pretrained(tmp_path).eval()
    assert torch.equal(answer_of(loaded, batch).logits, expected)
    names = [site.id for site in hp.find_heads(model, example=batch)]
    assert names == ["encoder.0", "encoder.1", "decoder.0", "decoder.1", "cross.0", "cross.1"]


def test_a_class_that_runs_only_a_part_shows_that_part(tmp_path):
    """BART's decoder alone never runs its cross-attention."""
    model = tiny_model("bart")
    hp.prune_(model, full_mask(model).without("decoder.0:1", "cross.0:2"))
    model.save_pretrained(tmp_path)
    decoder = BartForCausalLM.from_pretrained(tmp_path).eval()
    assert [(s.id, s.kept) for s in hp.find_heads(decoder)] == [("decoder.0", (0, 2, 3)), ("decoder.1", (0, 1, 2, 3))]
