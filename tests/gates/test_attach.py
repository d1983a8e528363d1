"""Where gates go."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import OPTForCausalLM

import headprune as hp
from headprune.errors import GateError, UnknownNameError, UnsupportedModelError
from headprune.gates.distributions import HardConcrete
from headprune.structure.dummy_inputs import example_inputs
from tests.families.tiny import tiny_config, tiny_model


def test_where_gates_go(bert):
    """By component and by site; what does not exist gets a hint."""
    assert list(hp.attach_gates(copy.deepcopy(bert), sites=["encoder.1"]).places) == ["encoder.1"]
    assert len(hp.attach_gates(tiny_model("bart"), components=["cross"])) == 8
    with pytest.raises(GateError, match=r"no heads to gate\. The model has encoder"):
        hp.attach_gates(bert, components=["decoder"])
    with pytest.raises(UnknownNameError, match="Did you mean"):
        hp.attach_gates(bert, sites=["encoder.9"])
    with pytest.raises(UnknownNameError, match="hard-concrete"):
        hp.attach_gates(bert, "hard-concret")
    with pytest.raises(GateError, match="must be a Gate of 4 heads"):
        hp.attach_gates(bert, lambda heads: hp.HardConcrete(2))
    with pytest.raises(GateError, match="Pass keep=k"):
        hp.attach_gates(bert, "exact-k")
    own = hp.attach_gates(bert, lambda heads: hp.HardConcrete(heads, temperature=0.7))
    assert own.gate("encoder.0").temperature == 0.7


def test_gates_are_not_attached_twice_nor_pruned_under(bert):
    """Both say what to do."""
    gates = hp.attach_gates(bert)
    with pytest.raises(GateError, match="has gates already"):
        hp.attach_gates(bert)
    with pytest.raises(UnsupportedModelError, match=r"gates\.remove_"):
        hp.prune_(bert, hp.HeadMask.full(hp.find_heads(bert)).without("encoder.0:1"))
    with pytest.warns(UserWarning, match="undecided"):
        gates.remove_(keep=5)
    assert len(hp.find_heads(bert)) == 5
    with pytest.raises(GateError, match="no gates"):
        hp.gates_of(bert)
    with pytest.raises(GateError, match="not attached"):
        gates.mask()


def test_which_weights_train():
    """Presets and patterns."""
    model = tiny_model("bart")
    hp.attach_gates(model)
    gates = sum(p.numel() for p in hp.gates_of(model).parameters())
    assert hp.choose_trainable_(model, "gates") == gates
    hp.choose_trainable_(model, "encoder")
    trained = {name for name, p in model.named_parameters() if p.requires_grad and "gates" not in name}
    assert trained
    assert not any("decoder" in name for name in trained)
    assert hp.choose_trainable_(model, "all") == sum(p.numel() for p in model.parameters())
    hp.choose_trainable_(model, ["*.fc1.*"])
    assert all(p.requires_grad == ("fc1" in n or "gates" in n) for n, p in model.named_parameters())
    with pytest.raises(GateError, match="No weight is called encodr"):
        hp.choose_trainable_(model, "encodr")


def test_classes_that_call_only_their_decoder_draw_at_every_pass():
    """OPT's language model passes its base model by."""
    model = OPTForCausalLM(tiny_config("opt")).train()
    gates = hp.attach_gates(model, init=0.0)
    batch = example_inputs(model, batch=2, length=7)
    values = []
    for _ in range(2):
        model(**batch, labels=batch["input_ids"]).loss.backward()
        values.append(gates.value("decoder.0").detach().clone())
    assert not torch.equal(*values)


def test_gates_that_could_not_be_loaded_again_are_refused(bert):
    """A kind without a name; different options by site."""

    class Mine(HardConcrete):
        kind = "mine"

    with pytest.raises(GateError, match="register it"):
        hp.attach_gates(bert, Mine)
    warm = iter((0.2, 0.9))
    with pytest.raises(GateError, match="Make them alike"):
        hp.attach_gates(bert, lambda heads: HardConcrete(heads, temperature=next(warm)))
