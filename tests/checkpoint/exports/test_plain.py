"""Ordinary checkpoints of smaller models."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from typer.testing import CliRunner

import headprune as hp
from headprune.cli.app import app
from headprune.errors import UnsupportedModelError
from headprune.structure.dummy_inputs import example_inputs
from headprune.structure.run import difference, run
from tests.checkpoint.toy import answers_without_headprune, tell, uniformly_pruned
from tests.families.tiny import FAMILIES, tiny_model

# Whose config can say that heads are fewer and as wide as before.
PLAIN = {
    "phi", "phi3", "llama", "mistral", "mixtral", "qwen2", "qwen3", "gemma2", "gemma3_text", "gpt_oss", "deepseek_v3",
    "t5", "mt5", "vit", "deit", "dinov2",
}  # fmt: skip


def answer(model, batch):
    with torch.no_grad():
        return model.eval()(**batch)


@pytest.mark.parametrize("family", ["llama", "bert", "bart", "t5", "gpt2"])
def test_equally_many_neurons_everywhere_are_a_plain_checkpoint(family, tmp_path):
    """The config says the smaller number, with the heads left as they are; unequal numbers are refused."""
    model = tiny_model(family).eval()
    heads = hp.find_heads(model, neurons=True)
    scores = hp.score(model, heads=heads.neurons, method="random")
    even = hp.select(scores, heads.neurons, prune=0.25, per="site")
    batch = example_inputs(model)
    pruned = hp.prune_(copy.deepcopy(model), hp.HeadMask.from_dict(heads, even.to_dict()))
    hp.export(pruned, tmp_path / "plain", format="plain")
    loaded = type(model).from_pretrained(tmp_path / "plain").eval()
    assert not hasattr(loaded.config, "headprune")
    assert difference(answer(loaded, batch), answer(pruned, batch)).is_small
    uneven = hp.HeadMask.full(heads).without(f"{heads.neurons.sites[0].id}:0")
    with pytest.raises(UnsupportedModelError, match="47 neurons and"):
        hp.export(hp.prune_(model, uneven), tmp_path / "no", format="plain")


def test_plain_models_load_and_answer_without_headprune(tmp_path, programs):
    """Every family whose config can say it."""
    folders = []
    for family in sorted(PLAIN):
        model = uniformly_pruned(family)
        folders.append(hp.export(model, tmp_path / family, format="plain"))
        tell(folders[-1], model)
        assert "headprune" not in json.loads((folders[-1] / "config.json").read_text())
    answers_without_headprune(folders, programs)


@pytest.mark.parametrize("family", sorted(set(FAMILIES) - PLAIN))
def test_families_that_cannot_be_plain_say_why(family, tmp_path):
    """And nothing is written."""
    model = uniformly_pruned(family)
    with pytest.raises(hp.HeadpruneError, match=r"Otherwise save it with save_pretrained") as refusal:
        hp.export(model, tmp_path / "out", format="plain")
    reasons = ("divisible", "multiple", "divide", "of shape", "a list of heads by stage")
    assert any(reason in str(refusal.value) for reason in reasons)
    assert not (tmp_path / "out").exists()


def test_ragged_and_empty_layers_are_refused_by_name():
    """An ordinary config has one number for all layers."""
    model = tiny_model("llama")
    heads = hp.find_heads(model)
    hp.prune_(model, hp.HeadMask.full(heads).without("decoder.0:0", "decoder.0:1"))
    with pytest.raises(hp.HeadpruneError, match=r"decoder.0 has 2 heads and decoder.1 has 4"):
        hp.export(model, "nowhere")
    model = tiny_model("llama")
    hp.prune_(model, hp.HeadMask.full(hp.find_heads(model)).without("decoder.0"))
    with pytest.raises(hp.HeadpruneError, match=r"decoder.0 has no heads left"):
        hp.export(model, "nowhere")


def test_t5_is_plain_only_if_all_layers_keep_the_same_heads(tmp_path):
    """They share one table of positions, with a column for each head."""
    model = tiny_model("t5")
    heads = hp.find_heads(model)
    mixed = [f"{site.id}:{site.layer}" for site in heads]  # head 0 of layer 0, head 1 of layer 1
    hp.prune_(model, hp.HeadMask.full(heads).without(*mixed))
    with pytest.raises(hp.HeadpruneError, match=r"relative_attention_bias.* must keep the same heads"):
        hp.export(model, tmp_path / "out")


def test_a_model_that_was_never_pruned_is_plain_already(tmp_path):
    """The same weights; the model itself is left as it was."""
    model = tiny_model("bert")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    loaded = type(model).from_pretrained(hp.export(model, tmp_path))
    batch = example_inputs(model)
    with torch.no_grad():
        assert difference(run(loaded.eval(), batch), run(model, batch)).largest == 0.0
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_every_tensor_keeps_its_precision(tmp_path):
    """Experts are routed by a bias in float32, also in a model that is in half precision."""
    model = uniformly_pruned("deepseek_v3").to(torch.bfloat16)
    kept = [name for name, _ in model.named_buffers() if name.endswith("e_score_correction_bias")]
    for name in kept:
        owner, _, last = name.rpartition(".")
        setattr(model.get_submodule(owner), last, torch.rand(4))
    hp.export(model, tmp_path / "plain")
    from safetensors.torch import load_file

    stored = load_file(tmp_path / "plain" / "model.safetensors")
    assert kept
    for name in kept:
        assert stored[name].dtype == torch.float32
        assert torch.equal(stored[name], model.get_buffer(name))
    assert stored["lm_head.weight"].dtype == torch.bfloat16


def test_the_card_of_a_plain_export_says_that_it_is_one(tmp_path):
    """What was removed stays told; what the user wrote stays."""
    uniformly_pruned("llama").save_pretrained(tmp_path / "pruned")
    card = tmp_path / "pruned" / "README.md"
    card.write_text(card.read_text() + "\nMine.\n")
    words = ["export", str(tmp_path / "pruned"), "--out", str(tmp_path / "plain")]
    CliRunner().invoke(app, words, catch_exceptions=False)
    text = (tmp_path / "plain" / "README.md").read_text()
    assert "nothing of headprune is needed" in text
    assert "size error" not in text
    assert "Removed attention heads" in text
    assert "Mine." in text
