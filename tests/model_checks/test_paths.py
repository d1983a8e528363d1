"""The checks of other inputs and of no trace find what they are for."""

from __future__ import annotations

import pytest
from transformers import AutoModel

from headprune.errors import VerificationError
from headprune.model_checks import checks
from headprune.model_checks.checks import CheckedModel
from headprune.structure.dummy_inputs import example_inputs
from headprune.structure.find import find_heads
from tests.families.tiny import tiny_model


def subject_of(family, **more):
    model = tiny_model(family, **more)
    example = example_inputs(model)
    return CheckedModel(model, example, find_heads(model, example))


def test_a_trace_is_found(monkeypatch):
    """An attribute that a scorer leaves, a random number that it draws, a weight that it changes."""
    import torch

    from headprune.model_checks import paths

    def writes(subject):
        return {"score": lambda: setattr(subject.model.config, "left_behind", 1)}

    def draws(subject):
        return {"score": lambda: torch.rand(1)}

    def trains(subject):
        return {"score": lambda: subject.model.classifier.weight.data.add_(1)}

    for calls, told in (
        (writes, "score leaves .*left_behind"),
        (draws, "random state"),
        (trains, "weights are changed"),
    ):
        subject = subject_of("bert")
        checks["no trace"](subject)
        with monkeypatch.context() as patch:
            patch.setattr(paths, "_calls", calls)
            with pytest.raises(VerificationError, match=told):
                checks["no trace"](subject)


def test_a_projection_that_was_left_uncut_is_found():
    """Longformer's, put back as it was before the cut: only a text with global attention meets it."""
    subject = subject_of("longformer", auto=AutoModel)
    checks["every path"](subject)
    pruned = subject.pruned(subject.one_fewer)
    whole, cut = (model.encoder.layer[0].attention.self for model in (subject.model, pruned))
    cut.query_global = whole.query_global
    subject.compared[:] = [pruned]
    with pytest.raises(Exception, match=r"shape|size|query_global|cannot be run"):
        checks["every path"](subject)
