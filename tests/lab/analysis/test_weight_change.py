"""Weight change by head."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from typer.testing import CliRunner

import headprune as hp
from headprune.cli.app import app
from headprune.errors import UnsupportedModelError
from headprune.lab.analysis.weight_change import weight_changes
from tests.families.tiny import tiny_model


def moved(model):
    """A copy: the queries of encoder.0:1 grew by 0.5, the values of encoder.1:2 changed sign."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        layers = other.bert.encoder.layer
        layers[0].attention.self.query.weight[8:16] += 0.5
        layers[1].attention.self.value.weight[16:24] *= -1
    return other


def test_changes_are_told_head_by_head_in_both_readings():
    """A change of sign is a difference, but none of magnitude."""
    model = tiny_model("bert")
    found = weight_changes(model, moved(model))
    assert found.by_role["query"]["encoder.0"] == pytest.approx((0.0, 0.5, 0.0, 0.0))
    assert found.by_role["key"]["encoder.0"] == (0.0, 0.0, 0.0, 0.0)
    flipped = 2 * model.bert.encoder.layer[1].attention.self.value.weight[16:24].abs().mean().item()
    assert found.by_role["value"]["encoder.1"] == pytest.approx((0.0, 0.0, flipped, 0.0))
    assert found.overall["encoder.0"] == pytest.approx((0.0, 0.5 / 3, 0.0, 0.0))
    other = weight_changes(model, moved(model), reading="magnitude")
    assert other.by_role["value"]["encoder.1"] == (0.0, 0.0, 0.0, 0.0)


def test_removed_heads_are_blank():
    """A model pruned and then trained is compared by original index."""
    model = tiny_model("bert")
    after = moved(model)
    hp.prune_(after, hp.HeadMask.full(hp.find_heads(after)).without("encoder.0:0", "encoder.1"))
    found = weight_changes(model, after)
    assert found.by_role["query"]["encoder.0"] == pytest.approx((None, 0.5, 0.0, 0.0))
    assert "encoder.1" not in found.overall


@pytest.mark.parametrize("family", ["gpt2", "gpt_neox", "llama", "t5", "phi3", "falcon"])
def test_queries_keys_and_values_are_told_apart_in_every_layout(family):
    """Fused, interleaved, shared: scaling all weights by two changes each role by its own mean magnitude."""
    model = tiny_model(family)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.5)
    found = weight_changes(model, other)
    assert set(found.by_role["query"]) == set(found.by_role["key"]) == set(found.by_role["value"])
    assert all(value > 0 for rows in found.by_role.values() for row in rows.values() for value in row)


def test_different_models_are_not_compared():
    """Nor unknown readings used."""
    with pytest.raises(UnsupportedModelError, match="different sites"):
        weight_changes(tiny_model("bert"), tiny_model("bert", num_attention_heads=2))
    with pytest.raises(UnsupportedModelError, match="'difference' or 'magnitude'"):
        weight_changes(tiny_model("bert"), tiny_model("bert"), reading="x")


def test_the_command_writes_data_and_a_picture(tmp_path):
    """And one line."""
    model = tiny_model("bert")
    model.save_pretrained(tmp_path / "before")
    moved(model).save_pretrained(tmp_path / "after")
    words = ["diff", str(tmp_path / "before"), str(tmp_path / "after"), "--out", str(tmp_path / "out")]
    text = CliRunner().invoke(app, words, catch_exceptions=False).stdout
    assert "they differ by up to" in text
    result = json.loads((tmp_path / "out" / "diff.json").read_text())
    assert result["by_role"]["query"]["encoder.0"][1] == pytest.approx(0.5)
    assert (tmp_path / "out" / "diff.html").exists()
