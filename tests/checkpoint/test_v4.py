"""Checkpoints that transformers v4 pruned."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

import headprune as hp
from tests.places import V4

IDS = torch.tensor([[5, 6, 7, 8, 9, 10, 11], [4, 3, 12, 13, 14, 2, 1]])


def load(name, **more):
    auto = {"bert": AutoModelForSequenceClassification, "gpt2": AutoModelForCausalLM}[name]
    return auto.from_pretrained(V4 / name, **more).eval()


def logits(model):
    with torch.no_grad():
        return model(input_ids=IDS).logits


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_a_checkpoint_that_v4_pruned_loads_and_answers_as_in_v4(name, tmp_path):
    """Its config says so in v4's words; saved again it is an ordinary pruned checkpoint."""
    told = json.loads((V4 / name / "answers.json").read_text())
    model = load(name)
    torch.testing.assert_close(logits(model), torch.tensor(told["logits"]), rtol=1e-5, atol=1e-6)
    gone = {int(layer): heads for layer, heads in told["pruned"].items()}
    assert model.config.pruned_heads == gone
    for site in hp.find_heads(model):
        assert set(site.kept) == set(range(4)) - set(gone[site.layer])
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path).eval()
    assert torch.equal(logits(again), logits(model))
    assert again.config.pruned_heads == gone


def test_a_v4_checkpoint_can_be_pruned_again_and_loads_as_base_model_or_in_half(tmp_path):
    """In the numbering of the original model."""
    from transformers import BertModel

    model = hp.prune_heads(load("bert"), {0: [0], 1: [3]})  # 3 of layer 1 is gone already: passed over, as in v4
    assert model.config.pruned_heads == {0: [0, 1, 2], 1: [3]}
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path).eval()
    assert torch.equal(logits(again), logits(model))
    assert len(hp.find_heads(BertModel.from_pretrained(V4 / "bert"))) == 5
    half = load("bert", dtype=torch.bfloat16)
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(logits(half).float(), logits(load("bert")), rtol=0.05, atol=0.05)
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ({"7": [0]}, "names layer 7; this model has layers 0 to 1"),
        ({"0": [9]}, r"removes heads \[9\] of layer 0, which has 4"),
        ({"0": [0, 1, 2, 3]}, "not all"),
        ({"x": [0]}, "expected layers with lists of heads"),
        ({"0": [1.7]}, "expected layers with lists of heads"),
        ({"0": [True]}, "expected layers with lists of heads"),
        ({"0": [1], "00": [2]}, "expected layers with lists of heads"),
        ({"0": [1], "1": [3]}, "Its weights do not have the shapes that its config gives"),
        ([1], "expected layers with lists of heads"),
    ],
)
def test_a_damaged_entry_is_told(entry, told, tmp_path):
    """What was found and what was expected."""
    for path in (V4 / "bert").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text()) | {"pruned_heads": entry}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(hp.HeadpruneError, match=told):
        AutoModelForSequenceClassification.from_pretrained(tmp_path)


def test_a_v4_encoder_inside_a_composite_can_be_saved(tmp_path):
    """Its own config says what is gone."""
    from transformers import BertConfig, EncoderDecoderConfig, EncoderDecoderModel

    sizes = {
        "vocab_size": 23,
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "intermediate_size": 16,
    }
    encoder = BertConfig(**sizes, pruned_heads={"0": [1]})
    config = EncoderDecoderConfig.from_encoder_decoder_configs(encoder, BertConfig(**sizes))
    model = EncoderDecoderModel(config).eval()
    assert model.encoder.encoder.layer[0].attention.self.query.weight.shape == (12, 16)
    model.save_pretrained(tmp_path)
    again = EncoderDecoderModel.from_pretrained(tmp_path).eval()
    batch = {"input_ids": IDS, "decoder_input_ids": IDS}
    with torch.no_grad():
        assert torch.equal(again(**batch).logits, model(**batch).logits)
