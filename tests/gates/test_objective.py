"""What gates are trained for."""

from __future__ import annotations

import pytest
from transformers import BertForSequenceClassification

import headprune as hp
from headprune.errors import GateError
from tests.families.tiny import tiny_config
from tests.gates.toy import gated_bert, trainer


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"weight": -0.1}, "lambda is -0.1"),
        ({"weight": 0.1, "target": 3}, "not both"),
        ({"warmup": -1}, "expected numbers of steps"),
    ],
)
def test_impossible_objectives_are_refused(options, told):
    """With what was found."""
    with pytest.raises(GateError, match=told):
        hp.Objective(**options)


def test_an_impossible_target_is_refused(tmp_path):
    """More heads than there are; no gates at all."""
    with pytest.raises(GateError, match="The target is 9 heads; 8 are gated"):
        trainer(gated_bert(), tmp_path, hp.Objective(target=9))
    plain = BertForSequenceClassification(tiny_config("bert", num_labels=2))
    with pytest.raises(GateError, match="no gates"):
        trainer(plain, tmp_path, hp.Objective())
