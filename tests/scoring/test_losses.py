"""The loss of an example."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoModelForQuestionAnswering, AutoModelForTokenClassification

import headprune as hp
from headprune.structure.dummy_inputs import example_inputs
from tests.families.tiny import tiny_model
from tests.scoring.toy import labelled, rows, singles

TASKS = {
    "tagging": (AutoModelForTokenClassification, lambda ids: {"labels": ids % 2}),
    "masked words": (AutoModelForMaskedLM, lambda ids: {"labels": ids.masked_fill(ids % 3 != 0, -100)}),
    "questions": (
        AutoModelForQuestionAnswering,
        lambda ids: {"start_positions": torch.tensor([1, 2]), "end_positions": torch.tensor([2, 3])},
    ),
}


@pytest.mark.parametrize("task", TASKS)
def test_other_heads_with_labels_work_out_of_the_box(task):
    """The loss of an example is worked out and agrees with the model's own."""
    auto, labels = TASKS[task]
    model = tiny_model("bert", auto=auto)
    batch = example_inputs(model)
    batch |= labels(batch["input_ids"])
    scores = hp.score(model, [batch])
    assert all(value > 0 for row in scores.scores.values() for value in row)


@pytest.mark.parametrize(("settings", "labels"), [
    ({"num_labels": 1, "problem_type": "regression"}, torch.tensor([0.5, -1.0])),
    ({"num_labels": 3, "problem_type": "multi_label_classification"}, torch.tensor([[1.0, 0, 1], [0, 0, 1]])),
])  # fmt: skip
def test_regression_and_several_labels(settings, labels):
    """Mean squared error and binary cross-entropy per example."""
    model = tiny_model("bert", **settings)
    batch = example_inputs(model) | {"labels": labels}
    assert hp.score(model, [batch]).counts["encoder.0"] == 2.0


def test_sum_and_mean_of_token_losses():
    """`sum` weighs long examples more: with one example it is the mean times its tokens."""
    model = tiny_model("gpt2")
    batch = singles(labelled(model, "gpt2"))[0]
    tokens = int((batch["labels"][:, 1:] != -100).sum())
    mean, total = hp.score(model, [batch]), hp.score(model, [batch], loss="sum")
    assert torch.allclose(rows(total), rows(mean) * tokens, rtol=1e-4)


@pytest.mark.parametrize("family", ["bert", "roberta", "vit", "t5", "bart"])
def test_models_in_bfloat16_have_a_loss_that_is_known(family):
    """Some compute it in bfloat16 themselves, with an error that is no other loss."""
    for seed in range(4):
        model = tiny_model(family, seed=seed).to(torch.bfloat16)
        batch = example_inputs(model)
        rows = len(next(iter(batch.values())))
        batch["labels"] = batch["decoder_input_ids"] if "decoder_input_ids" in batch else torch.arange(rows) % 2
        batch = {k: v.to(torch.bfloat16) if v.is_floating_point() else v for k, v in batch.items()}
        assert len(hp.search(model, [batch], prune=0.5)) == len(hp.find_heads(model)) // 2
