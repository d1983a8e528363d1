"""Faults that a review of the gates found, each with what should happen."""

from __future__ import annotations

import copy
import json
import warnings

import pytest
import torch
from transformers import (
    BertForSequenceClassification,
    BertLMHeadModel,
    BertModel,
    CLIPModel,
    EncoderDecoderModel,
    LlamaForCausalLM,
    OPTForCausalLM,
    T5EncoderModel,
    T5ForConditionalGeneration,
    XLNetForSequenceClassification,
)
from typer.testing import CliRunner

import headprune as hp
from headprune.cli.app import app
from headprune.equality import difference
from headprune.errors import CheckpointError, DataError, GateError, MaskError
from headprune.gates.distributions import HardConcrete
from headprune.hooks import is_gated
from headprune.structure.example import example_inputs
from tests.families.tiny import tiny_config
from tests.gates.test_training import alphas, gated_bert, trainer
from tests.tasks.toy import write_data, write_model


@pytest.fixture
def bert():
    torch.manual_seed(0)
    return BertForSequenceClassification(tiny_config("bert", num_labels=2)).eval()


def quietly(call, *args, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return call(*args, **kwargs)


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


def test_gates_that_could_not_be_loaded_again_are_refused(bert):
    """A kind without a name; different options by site."""

    class Mine(HardConcrete):
        kind = "mine"

    with pytest.raises(GateError, match="register it"):
        hp.attach_gates(bert, Mine)
    warm = iter((0.2, 0.9))
    with pytest.raises(GateError, match="Make them alike"):
        hp.attach_gates(bert, lambda heads: HardConcrete(heads, temperature=next(warm)))


def test_only_gates_train_and_freeze_and_resume(tmp_path):
    """Frozen at once, and resumed after freezing: the run ends without an error."""
    model = gated_bert()
    hp.choose_trainable_(model, "gates")
    trainer(model, tmp_path / "a", hp.Objective(target=4, freeze_after=0)).train()
    for _ in range(2):
        model = gated_bert()
        hp.choose_trainable_(model, "gates")
        run = trainer(
            model, tmp_path / "b", hp.Objective(target=4, freeze_after=3), save_strategy="steps", save_steps=3
        )
        last = tmp_path / "b" / "checkpoint-3"
        run.train(resume_from_checkpoint=str(last) if last.is_dir() else None)
    assert (alphas(model) > 0).sum() == 4


def call(*words):
    return CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False).stdout


def test_a_result_is_not_served_for_other_data(tmp_path):
    """Another data folder, metric or batch size is another run; so is a count that looks like a share."""
    one, other = write_data(tmp_path / "one", 40, 20), write_data(tmp_path / "other", 40, 30)
    model = write_model(tmp_path / "model")
    words = ("gates", model, "--epochs", 1, "--batch-size", 20, "--out", tmp_path / "out", "--json")
    call(*words, "--data-dir", one, "--keep", 4)
    with pytest.raises(GateError, match="other settings"):
        call(*words, "--data-dir", other, "--keep", 4)
    call(*words, "--data-dir", one, "--keep", 1, "--keep", "100%")
    kept = {path.parent.name: json.loads(path.read_text())["result"]["heads"][1]
            for path in (tmp_path / "out").glob("keep-*/gates.json")}  # fmt: skip
    assert kept == {"keep-4": 4, "keep-1": 1, "keep-1.0": 8}


def test_checkpoints_of_another_run_are_not_resumed(tmp_path):
    """Other settings in the same folder are refused; the same ones go on."""
    data, model = write_data(tmp_path / "data", 40, 20), write_model(tmp_path / "model")
    words = ("finetune", model, "--data-dir", data, "--epochs", 1, "--out", tmp_path / "out", "--json")
    call(*words, "--lr", 1e-3)
    call(*words, "--lr", 1e-3)
    with pytest.raises(DataError, match="another model, other data or other settings"):
        call(*words, "--lr", 1e-5)


def reloaded(model, tmp_path, cls=None):
    for gates in [part for part in model.modules() if isinstance(part, hp.Gates)]:
        for parameter in gates.parameters():
            parameter.data.uniform_(-3, 3)
    model.eval().save_pretrained(tmp_path)
    return (cls or type(model)).from_pretrained(tmp_path).eval()


def same(first, second, batch):
    with torch.no_grad():
        return difference(first(**batch)[0], second(**batch)[0]).is_small


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
