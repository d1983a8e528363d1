"""Results on a task's data, as they are stored."""

from __future__ import annotations

import json

import pytest

from headprune.errors import FileFormatError
from headprune.jobs.ablate import Ablated
from headprune.jobs.curve import Curved
from headprune.jobs.evaluate import Evaluated
from tests.places import ROOT
from tests.stored import only_fields_of

STORED = ROOT / "tests" / "data" / "v010" / "commands"


@pytest.mark.parametrize(
    ("kind", "file"),
    [(Ablated, "ablation/ablation.json"), (Curved, "curve/curve.json"), (Evaluated, "evaluated/evaluation.json")],
)
def test_a_result_of_the_first_version_is_read_whole(kind, file):
    """What 0.1.0 wrote becomes a value, and the value writes the same again, beside fields that came later."""
    stored = json.loads((STORED / file).read_text())
    assert only_fields_of(kind.from_dict(stored).to_dict(), stored) == stored


def test_a_model_compared_with_another_is_read_whole():
    """The other model's score has settings of its own."""
    score = {
        "heads": 4, "metric": "bleu", "score": 1.0, "interval": [0.5, 1.5], "level": 0.95, "examples": 3, "loss": None,
        "seconds": 1.0, "examples_per_second": 3.0,
    }  # fmt: skip
    stored = {"task": "translation", **score, "split": "test", "seed": 0}
    stored["against"] = {"task": "translation", "also": {"chrf": 2.0}, **score, "change": 0.1, "p": 0.5, "method": "b"}
    found = Evaluated.from_dict(stored)
    assert found.against.settings == {"task": "translation", "also": {"chrf": 2.0}}
    assert found.to_dict() == stored


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"score": "high"}, "score is 'high'; expected a number"),
        ({"interval": [1.0]}, "interval is a list of 1; expected one of 2"),
        ({"split": None}, "split is None; expected a text"),
    ],
)
def test_a_field_of_another_kind_is_told(change, told):
    """Which field, what was found, what was expected."""
    stored = json.loads((STORED / "evaluated/evaluation.json").read_text())
    with pytest.raises(FileFormatError, match=told.replace("[", r"\[")):
        Evaluated.from_dict({**stored, **change})
    with pytest.raises(FileFormatError, match=r"the whole is \[\]; expected a table"):
        Evaluated.from_dict([])
