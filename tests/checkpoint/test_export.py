"""Pruned models where headprune is not installed."""

from __future__ import annotations

import json

import pytest
import torch

import headprune as hp
from headprune.checkpoint.exports import exports
from headprune.errors import UnsupportedModelError
from headprune.structure.dummy_inputs import example_inputs
from tests.checkpoint.toy import uniformly_pruned
from tests.families.tiny import half_of, tiny_model


def test_what_is_something_else_at_the_moment_is_refused(tmp_path):
    """Gates would be lost without a word; masks and adapters are no part of a checkpoint."""
    model = uniformly_pruned("llama")
    hp.attach_gates(model, "hard-concrete")
    with pytest.raises(hp.HeadpruneError, match="The model has gates"):
        hp.export(model, tmp_path / "out")
    other = uniformly_pruned("llama")
    with hp.masked(other, {"decoder.0": torch.zeros(4)}), pytest.raises(hp.HeadpruneError, match="`masked` block"):
        hp.export(other, tmp_path / "out")
    (tmp_path / "file").touch()
    with pytest.raises(hp.HeadpruneError, match="is a file; expected a folder"):
        hp.export(other, tmp_path / "file")


@pytest.mark.parametrize("format_", ["plain", "standalone", "onnx"])
def test_a_model_between_repair_and_pruning_is_not_exported(format_, tmp_path):
    """As `save_pretrained` refuses it: it is neither the one nor the other."""
    model = tiny_model("llama")
    hp.recover_(model, half_of(hp.find_heads(model)), [example_inputs(model)])
    with pytest.raises(UnsupportedModelError, match="prune_ it with the mask"):
        hp.export(model, tmp_path / "out", format=format_)
    with pytest.raises(UnsupportedModelError, match="prune_ it with the mask"):
        hp.search(model, [example_inputs(model)], prune=0.5)
    assert not (tmp_path / "out").exists()


def test_a_format_of_ones_own_is_one_function(tmp_path, monkeypatch):
    """Registered by name: its card, its options, a hint for names that are nearly right; nothing half written."""
    monkeypatch.setattr(exports, "_items", dict(exports._items))

    @exports.add("numbers", loading="Read numbers.json.", weights="*.json")
    def save_numbers(model, folder, example, *, digits=3):
        (folder / "numbers.json").write_text(json.dumps([round(p.mean().item(), digits) for p in model.parameters()]))
        if digits < 0:
            raise OSError("no room left")

    model = tiny_model("bert")
    hp.prune_(model, hp.HeadMask.full(hp.find_heads(model)).without("encoder.0:1"))
    folder = hp.export(model, tmp_path / "out", format="numbers", digits=2)
    assert json.loads((folder / "numbers.json").read_text())
    assert "Read numbers.json." in (folder / "README.md").read_text()
    with pytest.raises(hp.HeadpruneError, match="Did you mean 'numbers'"):
        hp.export(model, tmp_path / "out", format="number")
    with pytest.raises(hp.HeadpruneError, match="digits is for the format numbers; plain"):
        hp.export(model, tmp_path / "out", format="plain", digits=2)
    with pytest.raises(hp.HeadpruneError, match="No format has an option called 'colour'"):
        hp.export(model, tmp_path / "out", format="numbers", colour="blue")
    with pytest.raises(OSError, match="no room"):
        hp.export(model, tmp_path / "other", format="numbers", digits=-1)
    assert not (tmp_path / "other").exists()
