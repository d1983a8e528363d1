"""Batches that reach a part of a model, and examples that are not rows."""

from __future__ import annotations

import copy

import pytest
import torch
from tools.families import build_model
from transformers import AutoModelForImageTextToText

import headprune as hp
from headprune.errors import DataError, HeadpruneError
from headprune.scoring.moments import site_calls
from headprune.structure.dummy_inputs import example_inputs
from tests.families.tiny import half_of

SCORES = ("sensitivity", "fisher-block", "ablation", "curvature", "residual", "reconstruction", "output-norm")


def pictures_and_text():
    """A model that reads both, a batch with pictures, and one of text alone."""
    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_config(build_model.tiny_config("llava"))
    build_model.enlarge_(model, 0)
    seen = example_inputs(model)
    text = {"input_ids": torch.randint(1, 30, seen["input_ids"].shape), "attention_mask": seen["attention_mask"]}
    return model.eval(), *({**batch, "labels": batch["input_ids"]} for batch in (seen, text))


@pytest.mark.parametrize("method", [*SCORES, "confidence"])
def test_batches_need_not_reach_every_part_of_a_model(method):
    """Scores are those of the batches that do, in whatever order they come."""
    model, seen, text = pictures_and_text()
    found = [hp.score(model, order, method=method) for order in ([seen, text], [text, seen])]
    for site, row in found[0].scores.items():
        assert row == pytest.approx(found[1].scores[site], rel=1e-4, abs=1e-9)
    if method in ("output-norm", "confidence"):
        with pytest.raises(HeadpruneError, match=r"vision\.encoder\.0.*reache"):
            hp.score(model, [text], method=method)


def test_repairs_go_in_the_order_of_the_model_whichever_batch_comes_first():
    """A text alone would put the part for pictures last."""
    model, seen, text = pictures_and_text()
    heads = hp.find_heads(model)
    order = [site.id for site in heads]
    repaired = []
    for batches in ([seen, text], [text, seen]):
        job = hp.scoring.context.ScoringContext(
            model=model, heads=heads, batches=batches, loss=hp.scoring.context.ExampleLoss("mean")
        )
        assert list(site_calls(job, list(heads), batches)) == order
        repaired.append(hp.recover_(copy.deepcopy(model), half_of(heads), batches))
    for one, other in zip(repaired[0].parameters(), repaired[1].parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_pictures_of_all_examples_in_one_row():
    """Three texts and two pictures: repairs take all rows; where examples must be told apart, that is said."""
    built = build_model.build("qwen2_vl")
    batch = dict(built.batch)
    plain = torch.where(batch["input_ids"][:1] == built.model.config.image_token_id, 1, batch["input_ids"][:1])
    batch["input_ids"] = torch.cat([batch["input_ids"], plain])
    batch["attention_mask"] = torch.cat([batch["attention_mask"], batch["attention_mask"][:1]])
    batch["mm_token_type_ids"] = torch.cat([batch["mm_token_type_ids"], torch.zeros_like(plain)])
    batch["labels"] = batch["input_ids"]
    heads = hp.find_heads(built.model, built.batch)
    assert hp.score(built.model, [batch], heads=heads, method="output-norm").scores
    with pytest.raises(DataError, match=r"'pixel_values' has 8 rows for 3 examples.*batches of one example"):
        hp.score(built.model, [batch], heads=heads, method="residual")
    hp.recover_(built.model, half_of(heads), [batch], heads=heads)
