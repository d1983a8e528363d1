"""Scores of any method: batch size one, merging, kinds of data, what is left behind."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader

import headprune as hp
from headprune.errors import DataError, HeadpruneError, UnknownNameError, UnsupportedModelError
from headprune.scoring import scorers
from headprune.structure.dummy_inputs import example_inputs
from tests.families.tiny import labelled_batches, tiny_model
from tests.scoring.toy import labelled, rows, singles


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "t5", "bart", "vit", "swin"])
@pytest.mark.parametrize("method", ["sensitivity", "fisher"])
def test_a_batch_scores_as_its_examples_one_by_one(family, method):
    """Per-example masks make the batch size irrelevant; Swin goes example by example by itself."""
    model = tiny_model(family)
    batch = labelled(model, family)
    together, alone = hp.score(model, [batch], method=method), hp.score(model, singles(batch), method=method)
    assert torch.allclose(rows(together), rows(alone), atol=1e-6)
    assert together.counts == alone.counts
    for site, errors in together.standard_errors.items():
        assert errors == pytest.approx(alone.standard_errors[site], abs=1e-6)


@pytest.mark.parametrize("method", ["sensitivity", "fisher", "ablation", "output-norm", "confidence", "entropy"])
def test_scores_of_parts_add_up(method):
    """Two passes, or two workers, and their merge."""
    model = tiny_model("bert")
    parts = [labelled(model, "bert", seed=s) for s in (1, 2, 3)]
    whole = hp.score(model, parts, method=method)
    merged = hp.score(model, parts[:1], method=method) + hp.score(model, parts[1:], method=method)
    assert torch.allclose(rows(merged), rows(whole), atol=1e-12)
    assert merged.counts == whole.counts == dict.fromkeys(whole.counts, 6.0)


def test_a_masked_model_can_be_scored_for_rescoring():
    """Heads that are off move nothing; the rest is scored as it then matters."""
    model = tiny_model("bert")
    batch = labelled(model, "bert")
    mask = hp.HeadMask.full(hp.find_heads(model)).without("encoder.0:1", "encoder.0:2")
    scores = hp.score(model, [batch], mask=mask)
    assert scores["encoder.0:1"] == scores["encoder.0:2"] == 0.0
    pruned = hp.prune_(tiny_model("bert"), mask)
    again = hp.score(pruned, [batch])
    assert again["encoder.0:1"] is None
    for head in ("encoder.0:0", "encoder.0:3", "encoder.1:2"):
        assert again[head] == pytest.approx(scores[head], abs=1e-6)


def test_data_may_be_a_loader_or_a_dataset_with_a_collator():
    """Or a list of batches."""
    model = tiny_model("bert")
    batch = labelled(model, "bert")
    examples = [{k: v[i] for k, v in batch.items()} for i in range(2)]

    class Examples(torch.utils.data.Dataset):
        def __len__(self):
            return 2

        def __getitem__(self, index):
            return examples[index]

    expected = rows(hp.score(model, [batch]))
    assert torch.allclose(rows(hp.score(model, DataLoader(Examples(), batch_size=2))), expected, atol=1e-7)
    assert torch.allclose(rows(hp.score(model, Examples(), batch_size=1)), expected, atol=1e-6)


def test_scoring_leaves_the_model_as_it_was():
    """Training mode, gradients wanted, no gradients left, no hooks, no forward of ours."""
    model = tiny_model("siglip").train()
    batch = example_inputs(model)
    wants = [p.requires_grad for p in model.parameters()]
    for method in ("sensitivity", "ablation", "confidence", "output-norm"):
        hp.score(model, [batch], method=method, loss=lambda o, b: o.logits_per_image.sum(1))
    assert model.training
    assert [p.requires_grad for p in model.parameters()] == wants
    assert all(p.grad is None for p in model.parameters())
    assert not any(m._forward_pre_hooks or m._forward_hooks or "forward" in vars(m) for m in model.modules())


def test_bad_data_is_told():
    """No batch, no labels, a NaN, a batch that is not a table, a wrong method."""
    model = tiny_model("bert")
    batch = labelled(model, "bert")
    with pytest.raises(DataError, match="no batch"):
        hp.score(model, [])
    with pytest.raises(UnsupportedModelError, match="labels"):
        hp.score(model, [{k: v for k, v in batch.items() if k != "labels"}])
    with pytest.raises(DataError, match="not finite"):
        hp.score(model, [batch], loss=lambda o, b: o.logits.sum(1) * float("nan"))
    with pytest.raises(DataError, match="one number per example"):
        hp.score(model, [batch], loss=lambda o, b: o.logits)
    with pytest.raises(DataError, match="expected a table"):
        hp.score(model, [(1, 2)])
    with pytest.raises(UnknownNameError, match="Did you mean 'sensitivity'"):
        hp.score(model, [batch], method="sensitivty")
    with pytest.raises(HeadpruneError):
        hp.score(model, [batch], loss="median")


def test_a_user_adds_a_scorer_with_a_decorator():
    """Under the name that users type."""

    @scorers.add("first-is-best")
    def first(job):
        return hp.HeadScores.from_values(
            job.heads, {s.id: range(s.num_heads, 0, -1) for s in job.heads}, method="first-is-best"
        )

    try:
        assert hp.select(hp.score(tiny_model("bert"), method="first-is-best"), keep=2).to_dict() == {
            "encoder.0": [0],
            "encoder.1": [0],
        }
    finally:
        scorers._items.pop("first-is-best")


@pytest.mark.parametrize("method", ["residual", "reconstruction", "fisher-block"])
@pytest.mark.parametrize("family", ["bert", "llama", "bart", "swin"])
def test_scores_have_a_number_for_every_head(method, family):
    """Also with grouped queries, cross-attention and windows."""
    from transformers import AutoModelForImageClassification, AutoModelForSeq2SeqLM, AutoModelForSequenceClassification

    autos = {"swin": AutoModelForImageClassification, "bart": AutoModelForSeq2SeqLM}
    auto = autos.get(family, AutoModelForSequenceClassification)
    model = tiny_model(family, auto=auto, pad_token_id=1, num_labels=2)
    batches = labelled_batches(model)
    if family == "bart":
        batches = [{**batch, "labels": batch["decoder_input_ids"]} for batch in batches]
    heads = hp.find_heads(model)
    scores = hp.score(model, batches, method=method)
    rows = [scores.scores[site.id] for site in heads]
    assert all(value is not None and value >= 0 and value == value for row in rows for value in row)
    assert len({round(value, 12) for row in rows for value in row}) > len(heads.sites)
