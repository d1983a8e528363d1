"""Inputs made from a config."""

from __future__ import annotations

import pytest
from transformers import AutoModelForMultipleChoice, AutoModelForSequenceClassification

import headprune as hp
from headprune.structure.dummy_inputs import example_inputs
from tests.families.tiny import half_of, tiny_model


def test_examples_obey_their_seed():
    """Pictures and sounds as well as tokens."""
    for family in ("bert", "vit", "wav2vec2", "whisper", "clip"):
        model = tiny_model(family)
        first, again, other = (example_inputs(model, seed=seed) for seed in (0, 0, 1))
        assert all(first[name].equal(again[name]) for name in first)
        assert any(not first[name].equal(other[name]) for name in first), family
        assert all(not first[name].equal(other[name]) for name in first if first[name].is_floating_point()), family


@pytest.mark.parametrize(
    ("family", "auto"),
    [
        ("bart", AutoModelForSequenceClassification),  # the decoder reads the input again; the answer is where it ends
        ("t5", AutoModelForSequenceClassification),
        ("mbart", AutoModelForSequenceClassification),
        ("bert", AutoModelForMultipleChoice),  # several texts an example
    ],
)
def test_what_these_tasks_read_is_made_from_the_config(family, auto, tmp_path):
    """So that no example is needed to find heads and to prune them."""
    model = tiny_model(family, auto=auto)
    heads = hp.find_heads(model)
    hp.prune_(model, half_of(heads))
    model.save_pretrained(tmp_path)
    assert len(hp.find_heads(type(model).from_pretrained(tmp_path))) == len(hp.find_heads(model)) < len(heads)


def test_sounds_are_short_unless_the_model_insists():
    """Wav2Vec2Bert can take 10,000 frames and needs few; Whisper takes no other number than its own."""
    from transformers import Wav2Vec2BertConfig, Wav2Vec2BertModel

    config = Wav2Vec2BertConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=32, add_adapter=False
    )
    assert example_inputs(Wav2Vec2BertModel(config).eval())["input_features"].shape[1] == 64
    whisper = tiny_model("whisper", max_source_positions=40)
    assert example_inputs(whisper)["input_features"].shape[-1] == 80
