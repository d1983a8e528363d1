"""Neurons of feed-forward parts: found, masked, removed, repaired and saved as heads are."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import AutoModel

import headprune as hp
from headprune.errors import MaskError, UnsupportedModelError
from headprune.heads import HeadMap
from headprune.structure.dummy_inputs import example_inputs
from headprune.structure.run import difference
from tests.families.tiny import half_of, tiny_model

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
    model = tiny_model("llama").eval()
    heads = hp.find_heads(model, neurons=True)
    batch = example_inputs(model)
    scores = hp.score(model, [{**batch, "labels": batch["input_ids"]}], heads=heads)
    mask = hp.select(scores, heads, params=0.8, model=model, unit="group")
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


@pytest.mark.parametrize("kind", ["mobilebert", "segformer", "gemma3n_text", "pvt_v2"])
def test_what_is_reported_can_be_pruned_and_the_rest_is_named(kind):
    """Residual channels, convolutions between projections and embeddings per layer are not neurons."""
    from tools.families.build_model import build

    built = build(kind)
    heads = hp.find_heads(built.model, built.batch, neurons=True)
    for site in heads.neurons:
        hp.prune_(built.model, hp.HeadMask.full(heads).without(f"{site.id}:0"), example=built.batch)
        break
    assert any("not neurons that can go" in item.reason for item in heads.skipped)
    assert all(".intermediate" not in site.output for site in heads.neurons)


def test_padding_of_the_source_does_not_reach_the_repair_of_encoder_neurons():
    """Positions of an encoder's neurons are those of the source, although the labels are as long."""
    repaired = []
    for filler in (0, 7):
        model = tiny_model("t5").eval()
        source = torch.arange(1, 15).repeat(2, 1)
        source[:, 10:] = filler
        mask = torch.ones_like(source)
        mask[:, 10:] = 0
        labels = torch.arange(2, 16).repeat(2, 1)
        labels[:, 8:] = -100
        batch = {"input_ids": source, "attention_mask": mask, "labels": labels}
        heads = hp.find_heads(model, neurons=True)
        kept = hp.HeadMask.random(heads.neurons, prune=0.5, seed=0)
        hp.recover_(model, kept, [batch])
        repaired.append(model.get_submodule(heads["encoder.neurons.1"].output).weight.clone())
    assert difference(*repaired).largest == 0.0


def test_scores_of_a_batch_are_those_of_its_examples_where_positions_come_first():
    """XLNet: the batch is the second dimension of what its feed-forward parts see."""
    from tools.families.build_model import build

    built = build("xlnet")
    model = built.model.eval()
    heads = hp.find_heads(model, built.batch, neurons=True)
    assert {site.batch_axis for site in heads} == {1}


def test_a_mask_of_neurons_alone_leaves_heads_alone_and_budgets_take_it():
    """Masked, repaired and pruned; and found for a share of the parameters."""
    model = tiny_model("bert").eval()
    heads = hp.find_heads(model, neurons=True)
    alone = hp.HeadMask.full(heads.neurons).without("neurons.0:3", "neurons.1:4")
    batch = example_inputs(model)
    hp.recover_(model, alone, [batch])
    with hp.masked(model, alone):
        expected = answer(model, batch)
    pruned = hp.prune_(copy.deepcopy(model), alone)
    assert difference(answer(pruned, batch), expected).is_small
    assert len(hp.find_heads(pruned)) == 8
    model = tiny_model("bert").eval()
    scores = hp.score(model, heads=heads.neurons, method="random")
    mask = hp.select(scores, heads.neurons, macs=0.9, model=model)
    assert all(site.startswith("neurons.") for site in mask.to_dict())
    assert hp.plan(model, mask).macs_after.total <= 0.9 * hp.plan(model, mask).macs_before.total


def test_thousands_of_neurons_are_eliminated_in_seconds():
    """Some at a time; the order is that of one at a time where columns do not depend on one another."""
    import time

    from headprune.scoring.methods.reconstruction import elimination

    torch.manual_seed(0)
    spread = torch.rand(1100, dtype=torch.float64) + 0.1
    weight = torch.randn(8, 1100, dtype=torch.float64)
    began = time.perf_counter()
    added = elimination(weight, torch.diag(spread), list(torch.arange(1100)[:, None]), ridge=0.0)
    assert time.perf_counter() - began < 60
    torch.testing.assert_close(added, weight.square().sum(0) * spread)


def test_scores_of_attention_refuse_neurons_and_scores_without_them_are_noticed():
    """In words, before anything is run."""
    from headprune.budgets.budget import within

    model = tiny_model("bert").eval()
    heads = hp.find_heads(model, neurons=True)
    for method in ("entropy", "confidence", "sensitivity-entropy", "relevance"):
        with pytest.raises(UnsupportedModelError, match="neurons do not have"):
            hp.score(model, [example_inputs(model)], method=method, heads=heads)
    scores = hp.score(model, method="random")
    costs = {site.id: [float(n) for n in range(site.num_heads + 1)] for site in heads}
    with pytest.raises(MaskError, match="Score neurons, too"):
        within(scores, heads, costs, 50.0)


def test_neurons_of_a_model_that_mixes_precisions_are_found():
    """T5 in half precision keeps the last projection of its feed-forward parts in float32."""
    model = tiny_model("t5").half()
    expected = [site.id for site in hp.find_heads(model, neurons=True).neurons]
    for name, module in model.named_modules():
        if name.endswith(".wo"):
            module.float()
    assert [site.id for site in hp.find_heads(model, neurons=True).neurons] == expected != []


@pytest.mark.parametrize("family", ["falcon", "mpt", "bert"])
def test_a_layer_without_attention_still_has_neurons(family):
    """They are found, pruned and saved as those of the other layers."""
    model = tiny_model(family).eval()
    first = hp.find_heads(model).heads()[0].site
    hp.prune_(model, hp.HeadMask.full(hp.find_heads(model)).without(first))
    both = hp.find_heads(model, neurons=True)
    assert [site.id for site in both.neurons] == ["neurons.0", "neurons.1"]
    hp.prune_(model, half_of(both.neurons))
    assert len(hp.find_heads(model, neurons=True).neurons) == len(both.neurons) // 2
