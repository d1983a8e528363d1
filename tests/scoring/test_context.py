"""What is asked before anything is scored."""

from __future__ import annotations

import copy

import pytest
import torch
from datasets import Dataset

import headprune as hp
from headprune.errors import DataError, MaskError, UnknownNameError, UnsupportedModelError
from headprune.recovery import SearchConfig
from headprune.registry import check_options
from tests.families.tiny import half_of, labelled_batch, tiny_model


def test_scoring_works_in_inference_mode():
    """And on batches that were made in it."""
    model = tiny_model("bert")
    expected = hp.score(model, [labelled_batch(model)]).scores
    with torch.inference_mode():
        batch = labelled_batch(model)
        assert hp.score(model, [batch]).scores == expected
        assert len(hp.search(model, [batch], prune=0.5)) == 4
    assert hp.score(model, [batch]).scores == expected


def test_likely_mistakes_are_told():
    """What was found, and what to do; nothing of the machinery below."""
    model = tiny_model("bert")
    batch = labelled_batch(model)
    for data, told in (
        (batch, r"Put it into a list"),
        (Dataset.from_dict({"input_ids": []}), "no batch"),
        ([{"input_ids": [1, 2, 3], "labels": 0}], "looks like one example"),
    ):
        with pytest.raises(DataError, match=told):
            hp.score(model, data)
    for act in (
        lambda: hp.score(model, [batch], method="curvature", rigde=1.0),
        lambda: hp.recover_(model, half_of(hp.find_heads(model)), [batch], rigde=1.0),
        lambda: hp.search(model, [batch], prune=0.5, way=SearchConfig(options={"rigde": 1.0})),
    ):
        with pytest.raises(UnknownNameError, match="Did you mean 'ridge'"):
            act()
    check_options("A scorer of one's own", lambda job, power=1: job, ["power"])
    with pytest.raises(UnknownNameError, match="Did you mean 'power'"):
        check_options("A scorer of one's own", lambda job, power=1: job, ["pwoer"])
    with pytest.raises(MaskError, match="expected a SearchConfig"):
        hp.search(model, [batch], prune=0.5, way="best")
    dead = copy.deepcopy(model)
    for parameter in dead.bert.encoder.layer[0].attention.self.value.parameters():
        torch.nn.init.zeros_(parameter)
    with pytest.raises(DataError, match="larger ridge"):
        hp.score(dead, [batch], method="residual", ridge=0.0)
    hp.prune_(dead, hp.HeadMask.empty(hp.find_heads(dead)))
    with pytest.raises(UnsupportedModelError, match="no heads left"):
        hp.score(dead, [batch])
    with pytest.raises(UnsupportedModelError, match="meta device"):
        hp.score(copy.deepcopy(model).to("meta"), [batch], heads=hp.find_heads(model))
