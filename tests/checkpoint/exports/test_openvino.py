"""Pruned models in OpenVINO: the file that it runs answers as the model does."""

from __future__ import annotations

import builtins

import numpy as np
import openvino
import pytest
import torch

import headprune as hp
from headprune.checkpoint.exports import one_pass
from headprune.checkpoint.exports.openvino import MODEL, MODEL_INT8
from headprune.errors import MissingExtraError, VerificationError
from headprune.structure.dummy_inputs import example_inputs
from tests.checkpoint.exports.test_onnx import pruned


def answers(folder, batch, name=MODEL):
    compiled = openvino.Core().compile_model(folder / name, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    asked = {name for node in compiled.inputs for name in node.get_names()}
    if "token_type_ids" in asked:  # as a tokenizer gives them for single texts
        batch = {"token_type_ids": torch.zeros_like(batch["input_ids"]), **batch}
    return compiled({key: value.numpy() for key, value in batch.items() if key in asked})[0]


@pytest.mark.parametrize("family", ["bert", "llama", "bart", "vit"])
def test_the_file_answers_as_the_model(family, tmp_path):
    """Ragged layers, an emptied site, grouped queries, cross-attention; another batch and length than exported."""
    model = pruned(family)
    folder = hp.export(model, tmp_path / "out", format="openvino")
    for batch in (example_inputs(model), example_inputs(model, batch=5, length=12, seed=4)):
        with torch.no_grad():
            output = model(**batch)
        expected = output.logits if "logits" in output else output.last_hidden_state
        np.testing.assert_allclose(answers(folder, batch), expected.numpy(), atol=1e-4)
    assert not list(folder.glob("*.onnx*"))
    assert "heads were removed" in (folder / "README.md").read_text()


def test_quantised_weights_come_near_and_are_smaller(tmp_path):
    """By nncf."""
    model = pruned("bert")
    folder = hp.export(model, tmp_path / "out", format="openvino", int8=True)
    batch = example_inputs(model)
    exact, rough = (answers(folder, batch, name) for name in (MODEL, MODEL_INT8))
    assert 0 < np.abs(exact - rough).max() < 0.1 * np.abs(exact).max() + 0.05
    sizes = [(folder / name).with_suffix(".bin").stat().st_size for name in (MODEL, MODEL_INT8)]
    assert sizes[1] < 0.4 * sizes[0]


def test_a_file_that_answers_otherwise_is_not_written(tmp_path, monkeypatch):
    """Compared before it is moved to its place."""
    monkeypatch.setattr(one_pass, "LARGEST_GAP", -1.0)
    with pytest.raises(VerificationError, match=r"The OpenVINO file .* Nothing was written"):
        hp.export(pruned("bert"), tmp_path / "out", format="openvino")
    assert not list(tmp_path.rglob("*.xml"))


def test_without_the_packages_the_extra_is_named(tmp_path, monkeypatch):
    """pip install 'headprune[openvino]'."""
    real = builtins.__import__

    def without(name, *rest):
        if name == "openvino":
            raise ImportError("no", name="openvino")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match=r"headprune\[openvino\]"):
        hp.export(pruned("bert"), tmp_path / "out", format="openvino")
