"""Gated models on disk."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from transformers import (
    AutoModel,
    BertForSequenceClassification,
    BertLMHeadModel,
    BertModel,
    CLIPModel,
    EncoderDecoderModel,
    T5EncoderModel,
    T5ForConditionalGeneration,
    XLNetForSequenceClassification,
)

import headprune as hp
from headprune.errors import CheckpointError
from headprune.hooks import is_gated
from headprune.structure.dummy_inputs import example_inputs
from headprune.structure.run import difference
from tests.families.tiny import tiny_config
from tests.gates.toy import KINDS, answer, quietly, set_gates


@pytest.fixture
def bert():
    torch.manual_seed(0)
    return BertForSequenceClassification(tiny_config("bert", num_labels=2)).eval()


@pytest.fixture
def batch(bert):
    return example_inputs(bert, batch=3, length=7)


@pytest.mark.parametrize("kind", KINDS)
def test_a_gated_model_saves_and_loads(kind, bert, batch, tmp_path):
    """With its gates, in every class; a frozen one stays frozen."""
    gates = hp.attach_gates(bert, kind, **({"keep": 3} if kind == "exact-k" else {}))
    set_gates(gates)
    gates.multiplier.fill_(0.25)
    expected = answer(bert, batch)
    bert.save_pretrained(tmp_path / "gated")
    again = BertForSequenceClassification.from_pretrained(tmp_path / "gated").eval()
    assert torch.equal(answer(again, batch), expected)
    loaded = hp.gates_of(again)
    assert loaded.mask() == gates.mask()
    assert loaded.multiplier.item() == 0.25
    base = AutoModel.from_pretrained(tmp_path / "gated").eval()
    hidden = answer(base, batch)
    with torch.no_grad():
        assert torch.equal(hidden, bert.bert(**batch).last_hidden_state)
    assert hp.gates_of(base).mask().to_dict() == gates.mask().to_dict()
    loaded.freeze_()
    again.save_pretrained(tmp_path / "frozen")
    frozen = hp.gates_of(BertForSequenceClassification.from_pretrained(tmp_path / "frozen"))
    assert frozen.frozen
    frozen.model.train()(**batch, labels=torch.tensor([0, 1, 0])).loss.backward()
    assert all(parameter.grad is None for parameter in frozen.parameters())
    frozen.model.eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        frozen.remove_().save_pretrained(tmp_path / "small")
    small = BertForSequenceClassification.from_pretrained(tmp_path / "small").eval()
    assert torch.allclose(answer(small, batch), expected, atol=1e-5)
    assert not hasattr(small.config, "headprune_gates")


def test_gates_on_a_pruned_model(bert, batch, tmp_path):
    """Original indices; saved and loaded on the shrunken skeleton."""
    hp.prune_(bert, hp.HeadMask.full(hp.find_heads(bert)).without("encoder.0:1", "encoder.1"))
    gates = set_gates(hp.attach_gates(bert), seed=3)
    assert len(gates) == 3
    assert set(gates.mask().to_dict()["encoder.0"]) <= {0, 2, 3}
    expected = answer(bert, batch)
    bert.save_pretrained(tmp_path)
    again = BertForSequenceClassification.from_pretrained(tmp_path).eval()
    assert torch.equal(answer(again, batch), expected)
    assert hp.gates_of(again).mask() == gates.mask()


def test_a_config_that_lies_about_gates_is_refused(bert, tmp_path):
    """Another version, sites that do not exist, gates that do not fit."""
    hp.attach_gates(bert)
    entry = copy.deepcopy(bert.config.headprune_gates)
    for change, told in (
        ({"version": 9}, "version 9"),
        ({"kind": "nonsense"}, "does not describe gates"),
        ({"sites": [{**entry["sites"][0], "gate_of_head": [0]}]}, "does not describe gates"),
        ({"sites": [{**entry["sites"][0], "output": "encoder.nowhere"}]}, "does not have"),
    ):
        bert.config.headprune_gates = {**entry, **change}
        bert.config.architectures = ["BertForSequenceClassification"]
        with pytest.raises(CheckpointError, match=told):
            BertForSequenceClassification(bert.config)


def test_gates_keep_their_precision(bert, batch):
    """The model in bf16, its gates in float32."""
    gates = hp.attach_gates(bert)
    bert.to(torch.bfloat16)
    assert gates.gate("encoder.0").log_alpha.dtype == torch.float32
    assert bert.classifier.weight.dtype == torch.bfloat16
    bert.train()
    bert(**batch, labels=torch.tensor([0, 1, 0])).loss.backward()
    assert gates.gate("encoder.0").log_alpha.grad is not None


def reloaded(model, tmp_path, cls=None):
    for gates in [part for part in model.modules() if isinstance(part, hp.Gates)]:
        for parameter in gates.parameters():
            parameter.data.uniform_(-3, 3)
    model.eval().save_pretrained(tmp_path)
    return (cls or type(model)).from_pretrained(tmp_path).eval()


def same(first, second, batch):
    with torch.no_grad():
        return difference(first(**batch)[0], second(**batch)[0]).is_small


def test_gates_keep_their_digits_through_half_precision(bert, tmp_path):
    """Cast, saved and loaded in bf16."""
    gates = hp.attach_gates(bert, init=2.013)
    bert.to(torch.bfloat16)
    assert gates.gate("encoder.0").log_alpha[0].item() == pytest.approx(2.013, abs=1e-6)
    bert.save_pretrained(tmp_path)
    again = BertForSequenceClassification.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert again.classifier.weight.dtype == torch.bfloat16
    alpha = hp.gates_of(again).gate("encoder.0").log_alpha
    assert alpha.dtype == torch.float32
    assert alpha[0].item() == pytest.approx(2.013, abs=1e-6)


def test_gates_on_the_base_model_are_saved_with_the_whole(bert, tmp_path):
    """And are told of no longer when they are gone."""
    gates = hp.attach_gates(bert.bert)
    batch = example_inputs(bert)
    assert same(reloaded(bert, tmp_path / "gated"), bert, batch)
    gates.freeze_()
    assert reloaded(bert, tmp_path / "frozen").config.headprune_gates["frozen"]
    quietly(gates.remove_)
    again = reloaded(bert, tmp_path / "pruned")
    assert not is_gated(again)
    assert same(again, bert, batch)


def test_gates_on_another_part_are_not_lost_in_silence(tmp_path):
    """The config of the whole has no place for them."""
    model = CLIPModel(tiny_config("clip"))
    hp.attach_gates(model.vision_model)
    with pytest.raises(CheckpointError, match="vision_model has gates of its own"):
        model.save_pretrained(tmp_path)


def test_a_part_of_a_gated_model_has_its_gates(tmp_path):
    """The encoder of T5; and XLNet, whose heads have no projection until they are joined."""
    whole = T5ForConditionalGeneration(tiny_config("t5"))
    hp.attach_gates(whole)
    batch = {"input_ids": torch.tensor([[3, 4, 5]])}
    assert same(reloaded(whole, tmp_path / "t5", T5EncoderModel), whole.encoder, batch)
    xlnet = XLNetForSequenceClassification(tiny_config("xlnet"))
    hp.attach_gates(xlnet)
    assert same(reloaded(xlnet, tmp_path / "xlnet"), xlnet, batch)


def test_a_gated_model_may_become_a_part_of_another(tmp_path):
    """Its own config goes with it."""
    encoder = BertModel(tiny_config("bert"))
    hp.attach_gates(encoder)
    reloaded(encoder, tmp_path / "encoder")
    decoder = BertLMHeadModel(tiny_config("bert", is_decoder=True, add_cross_attention=True))
    decoder.save_pretrained(tmp_path / "decoder")
    both = EncoderDecoderModel.from_encoder_decoder_pretrained(tmp_path / "encoder", tmp_path / "decoder")
    tokens = torch.tensor([[3, 4, 5]])
    again = reloaded(both, tmp_path / "both")
    assert is_gated(again.encoder)
    assert same(again, both, {"input_ids": tokens, "decoder_input_ids": tokens})
