"""Results of trainings, from the files of 0.1.0 and of today."""

from __future__ import annotations

import json

import pytest

from headprune.jobs.gated import GatesResult
from headprune.jobs.trained import Trained
from headprune.typed_json import FieldError
from tests.places import ROOT

TRIALS = sorted((ROOT / "tests" / "data" / "v010" / "run" / "runs" / "trials").glob("*.json"))


def stored(*commands):
    """Results that 0.1.0 stored."""
    trials = [json.loads(path.read_text()) for path in TRIALS]
    return [trial["result"] for trial in trials if trial["trial"]["params"].get("command") in commands]


def test_a_stored_training_is_read_and_written_as_it_was():
    """Every field, the parts of the data under their own names among them."""
    found = stored("finetune", "train-lm")
    assert len(found) == 9
    for content in found:
        read = Trained.from_dict(content)
        assert read.to_dict() == content
        assert read.dev.score == content["dev"]["score"]
        assert set(read.tests) == ({"test"} if "test" in content else set())


def test_stored_gates_are_read_and_written_as_they_were():
    """With every step of their training."""
    (content,) = stored("gates")
    read = GatesResult.from_dict(content["results"])
    assert read.to_dict() == content["results"]
    assert read.models[0].trajectory[0].prob_open == content["results"][0]["trajectory"][0]["prob_open"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"dev": {"metric": "x", "score": "high"}}, "dev.score is 'high'; expected a number."),
        ({"kept": {"decoder.0": ["a"]}}, "kept.decoder.0.0 is 'a'; expected a whole number below 2**63."),
        ({"original": None}, "original is None; expected a table."),
    ],
)
def test_a_training_of_another_shape_is_told(change, told):
    """The field, what was found and what was expected."""
    content = {**stored("finetune")[0], **change}
    with pytest.raises(FieldError) as error:
        Trained.from_dict(content)
    assert told in str(error.value)
