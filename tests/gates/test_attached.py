"""Gates on models: where they sit, what they do in training and at the end, saving, removal."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from transformers import AutoModel, BertForSequenceClassification, LlamaForCausalLM

import headprune as hp
from headprune.errors import CheckpointError, GateError, UnknownNameError, UnsupportedModelError
from headprune.structure.example import example_inputs
from tests.families.tiny import FAMILIES, tiny_config, tiny_model

KINDS = ("hard-concrete", "binary-concrete", "exact-k")


def set_gates(gates, seed=0, low=-4.0, high=4.0):
    """Every gate far from the middle, some open and some closed."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for site in gates.places:
            alpha = gates.gate(site).log_alpha
            alpha.copy_(torch.where(torch.rand(len(alpha), generator=generator) < 0.5, low, high))
    return gates


def answer(model, batch):
    with torch.no_grad():
        out = model(**batch)
    return next(out[name] for name in ("logits", "last_hidden_state", "logits_per_image") if name in out)


@pytest.mark.parametrize("family", FAMILIES)
def test_final_gates_equal_the_pruned_model(family):
    """For every family: gated in evaluation mode, masked with the gates' mask, and pruned."""
    model = tiny_model(family)
    batch = example_inputs(model, batch=2, length=7)
    unit = "group" if any(site.num_kv_heads != site.num_heads for site in hp.find_heads(model)) else "head"
    gates = set_gates(hp.attach_gates(model, "hard-concrete", unit=unit))
    with torch.no_grad():  # one site with nothing left
        gates.gate(next(iter(gates.places))).log_alpha.fill_(-4.0)
    gated = answer(model, batch)
    assert len(hp.find_heads(model)) == sum(site.num_heads for site in hp.find_heads(model))
    mask = gates.mask()
    plain = copy.deepcopy(model)
    hp.gates_of(plain).remove_(prune=False)
    assert torch.allclose(answer(plain, batch), gated, atol=1e-5 * max(1, float(gated.abs().max())))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pruned = gates.remove_()
    assert len(hp.find_heads(pruned)) == len(mask)
    assert torch.allclose(answer(pruned, batch), gated, atol=1e-5 * max(1, float(gated.abs().max())))
    assert not any("headprune_gates" in name for name, _ in pruned.named_parameters())


@pytest.fixture
def bert():
    torch.manual_seed(0)
    return BertForSequenceClassification(tiny_config("bert", num_labels=2)).eval()


@pytest.fixture
def batch(bert):
    return example_inputs(bert, batch=3, length=7)


@pytest.mark.parametrize("kind", KINDS)
def test_scaled_and_fractional_gates_are_folded_in(kind, bert, batch):
    """Output scaling and the fractions of the published rule end in the output projection's columns, not its bias."""
    options = {"keep": 3} if kind == "exact-k" else {}
    gates = hp.attach_gates(bert, kind, rule="clip", **options)
    with torch.no_grad():
        for place, site in enumerate(gates.places):
            gates.gate(site).log_alpha.copy_(torch.tensor([-3.0, 0.7, 1.5, -0.4]) + place)
    gated, mask = answer(bert, batch), gates.mask()
    bias = bert.bert.encoder.layer[0].attention.output.dense.bias.clone()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gates.remove_()
    assert torch.allclose(answer(bert, batch), gated, atol=1e-5)
    assert len(hp.find_heads(bert)) == len(mask) < 8
    assert torch.equal(bert.bert.encoder.layer[0].attention.output.dense.bias, bias)


def test_one_sample_a_forward_pass(bert, batch):
    """The same within a pass, another in the next, none in evaluation mode; a seed repeats them."""
    gates = hp.attach_gates(bert, init=0.0, seed=5)
    bert.eval()
    for module in bert.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    assert torch.equal(answer(bert, batch), answer(bert, batch))
    bert.train()
    first, second = answer(bert, batch), answer(bert, batch)
    assert not torch.equal(first, second)
    gates.at(0)
    assert torch.equal(answer(bert, batch), first)
    assert torch.equal(answer(bert, batch), second)
    gates.at(1)
    assert not torch.equal(answer(bert, batch), first)


def test_gradients_reach_the_gates_under_checkpointing(bert, batch):
    """A recomputed block sees the sample of its forward pass."""
    gates = hp.attach_gates(bert, init=0.0, temperature=2.0)  # warm enough for samples between 0 and 1
    for module in bert.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    found = []
    for checkpointing in (False, True):
        if checkpointing:
            bert.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        bert.train().zero_grad()
        gates.at(0)
        bert(**batch, labels=torch.tensor([0, 1, 0])).loss.backward()
        found.append([gates.gate(site).log_alpha.grad.clone() for site in gates.places])
    for plain, again in zip(*found, strict=True):
        assert plain.abs().sum() > 0
        assert torch.allclose(plain, again, atol=1e-7)


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


def test_the_penalty_counts_heads():
    """Sum over heads or mean over sites, with weights by component; a gate of a group counts its heads."""
    model = tiny_model("bart")
    gates = hp.attach_gates(model, "binary-concrete")
    heads = len(hp.find_heads(model))
    assert gates.penalty().item() == pytest.approx(heads * 0.9426, abs=1e-2)
    assert gates.penalty("site-mean").item() == pytest.approx(gates.penalty().item() / len(gates.places))
    only = gates.penalty(weights={"encoder": 1.0, "decoder": 0.0, "cross": 0.0}).item()
    assert only == pytest.approx(gates.penalty().item() / 3)
    assert gates.open_by_component() == {"encoder": 8, "decoder": 8, "cross": 8}
    llama = LlamaForCausalLM(tiny_config("llama")).eval()
    grouped = hp.attach_gates(llama, unit="group")
    assert len(grouped) == 8
    assert grouped.gate("decoder.0").num_heads == 2
    per_site = grouped.gate("decoder.0").penalty().item() * 2  # two heads a group
    assert grouped.penalty().item() == pytest.approx(per_site * 2)


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


def test_exactly_as_many_heads_as_asked_for(bert):
    """`keep` takes the likeliest, whatever the rule says."""
    gates = hp.attach_gates(bert)
    with torch.no_grad():
        gates.gate("encoder.0").log_alpha.copy_(torch.tensor([3.0, -3.0, 2.0, -2.0]))
        gates.gate("encoder.1").log_alpha.copy_(torch.tensor([-1.0, 4.0, 0.5, -5.0]))
    assert gates.mask(keep=3).to_dict() == {"encoder.0": [0, 2], "encoder.1": [1]}
    assert gates.mask(keep=6).to_dict() == {"encoder.0": [0, 2, 3], "encoder.1": [0, 1, 2]}
    with pytest.raises(GateError, match="keep is 9; there are 8"):
        gates.mask(keep=9)


def test_gates_keep_their_precision(bert, batch):
    """The model in bf16, its gates in float32."""
    gates = hp.attach_gates(bert)
    bert.to(torch.bfloat16)
    assert gates.gate("encoder.0").log_alpha.dtype == torch.float32
    assert bert.classifier.weight.dtype == torch.bfloat16
    bert.train()
    bert(**batch, labels=torch.tensor([0, 1, 0])).loss.backward()
    assert gates.gate("encoder.0").log_alpha.grad is not None


def test_a_copy_has_gates_of_its_own(bert, batch):
    """Closing a gate of the copy does not close the original's."""
    hp.attach_gates(bert)
    other = copy.deepcopy(bert)
    before = answer(bert, batch)
    with torch.no_grad():
        hp.gates_of(other).gate("encoder.0").log_alpha.fill_(-9.0)
    assert torch.equal(answer(bert, batch), before)
    assert not torch.equal(answer(other, batch), before)
    assert hp.gates_of(other).model is other


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
