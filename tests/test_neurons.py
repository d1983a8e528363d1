"""Neurons of feed-forward parts: found, masked, removed, repaired and saved as heads are."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import AutoModel

import headprune as hp
from headprune.comparing import difference
from headprune.errors import MaskError, UnsupportedModelError
from headprune.heads import HeadMap
from headprune.sites.example import example_inputs
from tests.families.tiny import tiny_model

FAMILIES = [
    "bert", "albert", "deberta-v2", "modernbert", "gpt2", "llama", "phi3", "gemma2", "deepseek_v3", "bloom", "t5",
    "bart", "whisper", "vit", "swin", "clip", "wav2vec2", "transformer_xl",
]  # fmt: skip


def answer(model, batch):
    with torch.no_grad():
        return model.eval()(**batch)


def neurons_of(heads):
    return [site for site in heads if site.is_neurons]


@pytest.mark.parametrize("family", FAMILIES)
def test_removing_neurons_equals_masking_them_and_loads_again(family, tmp_path):
    """With heads and without, a part emptied, after saving and loading."""
    model, heads = tiny_model(family), hp.find_heads(tiny_model(family), neurons=True)
    batch = example_inputs(model)
    some = hp.HeadMask.random(heads, prune=0.4, seed=1, unit="group")
    emptied = hp.HeadMask.full(heads).without(neurons_of(heads)[0].id)
    for number, mask in enumerate((some, emptied)):
        with hp.masked(model, mask):
            expected = answer(model, batch)
        pruned = hp.prune_(copy.deepcopy(model), mask)
        assert difference(answer(pruned, batch), expected).is_small
        assert sum(p.numel() for p in pruned.parameters()) < sum(p.numel() for p in model.parameters())
        pruned.save_pretrained(tmp_path / str(number))
        loaded = type(model).from_pretrained(tmp_path / str(number)).eval()
        assert difference(answer(loaded, batch), answer(pruned, batch)).is_small
        assert hp.HeadMask.full(hp.find_heads(loaded, neurons=True)) == mask
        assert not neurons_of(hp.find_heads(loaded))


def test_heads_pruned_after_neurons_and_neurons_after_heads(tmp_path):
    """Each keeps what the other did, in memory and on disk."""
    model = tiny_model("bert")
    heads = hp.find_heads(model, neurons=True)
    first = hp.HeadMask.full(heads).without("neurons.0:3", "neurons.1:7")
    hp.prune_(model, first)
    hp.prune_(model, hp.HeadMask.full(hp.find_heads(model)).without("encoder.0:1"))
    second = hp.HeadMask.full(hp.find_heads(model, neurons=True)).without("neurons.1:8")
    hp.prune_(model, second)
    model.save_pretrained(tmp_path)
    loaded = AutoModel.from_pretrained(tmp_path)
    left = hp.find_heads(loaded, neurons=True)
    assert left["encoder.0"].kept == (0, 2, 3)
    assert 3 not in left["neurons.0"].kept
    assert not {7, 8} & set(left["neurons.1"].kept)
    card = (tmp_path / "README.md").read_text()
    assert "1 of 8 attention heads were removed" in card
    assert "| neurons.1 | 46 | 48 |" in card
    assert "2 neurons by a mask" in card


def test_scores_select_and_repair_neurons_as_heads():
    """Sensitivity is the gradient of a neuron's mask; a copied neuron costs nothing after a repair."""
    model = tiny_model("gpt2").eval()
    heads = hp.find_heads(model, neurons=True)
    only = HeadMap(tuple(neurons_of(heads)), model_type=heads.model_type)
    assert len(only) == 96
    batch = example_inputs(model)
    batches = [{**batch, "labels": batch["input_ids"]}]
    single = [{name: value[:1] for name, value in batches[0].items()}]
    scores = hp.score(model, single, heads=heads)
    factor = torch.ones(48, requires_grad=True)
    with hp.masked(model, {"neurons.1": factor}):
        model(**single[0]).loss.backward()
    torch.testing.assert_close(torch.tensor(scores.scores["neurons.1"]), factor.grad.abs(), rtol=1e-4, atol=1e-7)
    copied = model.transformer.h[0].mlp.c_fc
    with torch.no_grad():
        copied.weight[:, 5] = copied.weight[:, 9]
        copied.bias[5] = copied.bias[9]
    mask = hp.HeadMask.full(heads).without("neurons.0:5")
    before = answer(model, batch)
    repaired = hp.recover_(copy.deepcopy(model), mask, batches, ridge=1e-9)
    pruned = hp.prune_(repaired, mask)
    assert difference(answer(pruned, batch).logits, before.logits).largest < 1e-4
    worth = hp.score(model, batches, heads=heads, method="reconstruction", ridge=1e-9).scores["neurons.0"]
    assert min(worth[5], worth[9]) < 1e-6 < sorted(worth)[-1]


def test_a_budget_is_spent_on_heads_and_neurons_together():
    """Parameters of both; what is cheap to lose goes."""
    from headprune.costs import mask_for_budget

    model = tiny_model("llama").eval()
    heads = hp.find_heads(model, neurons=True)
    batch = example_inputs(model)
    scores = hp.score(model, [{**batch, "labels": batch["input_ids"]}], heads=heads)
    mask = mask_for_budget(model, scores, heads, "parameters", 0.8, unit="group", normalize="none")
    pruned = hp.prune_(copy.deepcopy(model), mask)
    whole, left = (sum(p.numel() for p in m.parameters()) for m in (model, pruned))
    assert 0.7 * whole < left <= 0.8 * whole
    assert any(len(mask.kept(site.id)) < site.num_heads for site in neurons_of(heads))


def test_experts_are_named_and_a_mask_of_neurons_needs_them():
    """What is left alone is told; a mask of heads alone still fits the model."""
    heads = hp.find_heads(tiny_model("mixtral"), neurons=True)
    assert not neurons_of(heads)
    assert any("experts" in item.reason for item in heads.skipped)
    mask = hp.HeadMask.full(hp.find_heads(tiny_model("bert"), neurons=True))
    with pytest.raises(MaskError, match="another model"):
        hp.prune_(tiny_model("mixtral"), mask)


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


def test_onnx_and_standalone_without_some_neurons(tmp_path):
    """The other formats take them as they are."""
    pytest.importorskip("onnxruntime")
    model = tiny_model("bert").eval()
    heads = hp.find_heads(model, neurons=True)
    hp.prune_(model, hp.HeadMask.full(heads).without("neurons.0", "neurons.1:3", "encoder.1:0"))
    hp.export(model, tmp_path / "onnx", format="onnx")
    assert (tmp_path / "onnx" / "model.onnx").is_file()
    hp.export(model, tmp_path / "alone", format="standalone")
    alone = AutoModel.from_pretrained(tmp_path / "alone", trust_remote_code=True)
    assert alone.config.intermediate_size == 48
