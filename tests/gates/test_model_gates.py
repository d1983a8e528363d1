"""Gates on models: what they do in training and at the end, and their removal."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from transformers import LlamaForCausalLM

import headprune as hp
from headprune.errors import GateError, MaskError
from headprune.hooks import is_gated
from headprune.structure.dummy_inputs import example_inputs
from tests.families.tiny import FAMILIES, tiny_config, tiny_model
from tests.gates.toy import KINDS, answer, quietly, set_gates


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


def test_gates_stay_on_if_their_heads_cannot_be_removed():
    """One head of a group of two: refused, and nothing is lost."""
    model = LlamaForCausalLM(tiny_config("llama")).eval()
    gates = hp.attach_gates(model, unit="head")
    with torch.no_grad():
        gates.gate("decoder.0").log_alpha[1] = -5.0
    batch = example_inputs(model, batch=2, length=7)
    with torch.no_grad():
        before = model(**batch).logits
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(MaskError):
        quietly(gates.remove_)
    assert is_gated(model)
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    with torch.no_grad():
        assert torch.equal(model(**batch).logits, before)
    assert len(hp.find_heads(quietly(gates.remove_, gqa="expand"))) == 7


def test_groups_are_counted_in_heads():
    """Two groups of two heads a layer: keep 4 of 8; 3 cannot be."""
    for kind, options in (("hard-concrete", {}), ("exact-k", {"keep": 4})):
        model = LlamaForCausalLM(tiny_config("llama")).eval()
        gates = hp.attach_gates(model, kind, **options)
        assert gates.gate("decoder.0").num_heads == 2
        with pytest.raises(GateError, match="whole groups"):
            gates.mask(keep=3)
        assert len(hp.find_heads(quietly(gates.remove_, keep=4))) == 4
    with pytest.raises(GateError, match="choose a multiple"):
        hp.attach_gates(LlamaForCausalLM(tiny_config("llama")), "exact-k", keep=3)


def test_exact_k_probabilities_are_those_of_all_sites_together(bert):
    """Two of four open in each layer, and the expected number is k."""
    gates = hp.attach_gates(bert, "exact-k", keep=4)
    with torch.no_grad():
        for site in gates.places:
            gates.gate(site).log_alpha.copy_(torch.tensor([-4.0, 4.0, -4.0, 4.0]))
    for row in gates.probabilities().values():
        assert row == pytest.approx([0.0, 1.0, 0.0, 1.0], abs=1e-3)
    assert gates.expected_heads() == pytest.approx(4.0, abs=1e-3)
    assert gates.share_decided() == 1.0


def test_keeping_a_number_scales_by_that_number(bert):
    """Output scaling follows the heads that are kept, not those that the gates had open."""
    batch = example_inputs(bert, batch=2, length=7)
    answers = []
    for way in ("keep", "decide"):
        model = copy.deepcopy(bert)
        gates = hp.attach_gates(model, "binary-concrete")
        if way == "decide":
            gates.decide_(4)
        quietly(gates.remove_, **({"keep": 4} if way == "keep" else {}))
        with torch.no_grad():
            answers.append(model(**batch).logits)
    assert torch.equal(*answers)


@pytest.mark.parametrize(("own", "asked", "kept"), [("clip", "paper", 2), ("paper", "clip", 3)])
def test_the_rule_of_removal_chooses_the_heads_too(own, asked, kept, bert):
    """log_alpha -1 is closed by the paper's rule and a fraction by the code's."""
    gates = hp.attach_gates(bert, rule=own, sites=["encoder.0"])
    with torch.no_grad():
        gates.gate("encoder.0").log_alpha.copy_(torch.tensor([-1.0, 3.0, 3.0, -5.0]))
    quietly(gates.remove_, rule=asked)
    assert hp.find_heads(bert)["encoder.0"].num_heads == kept


def test_a_model_in_training_can_be_copied_and_compiled(bert):
    """What was drawn is not part of a copy; compiled code draws too."""
    gates = hp.attach_gates(bert, init=0.0)
    batch = example_inputs(bert, batch=2, length=7)
    bert.train()(**batch)
    copy.deepcopy(bert)
    compiled = torch.compile(bert, backend="eager")
    gates.at(3)
    quietly(compiled, **batch)
    first = gates.value("encoder.0").detach().clone()
    quietly(compiled, **batch)
    assert not torch.equal(gates.value("encoder.0"), first)
