"""Values show themselves: a short repr, a map in a notebook, a frame of pandas."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

import headprune as hp
from tests.families.tiny import tiny_model

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def model():
    return tiny_model("bert")


@pytest.fixture(scope="module")
def heads(model):
    return hp.find_heads(model)


def dashed(svg):
    return [rect for rect in ElementTree.fromstring(svg).iter(f"{SVG}rect") if rect.get("stroke-dasharray")]


def test_a_map_has_a_cell_a_head(heads):
    """Titles name them; nothing is dashed in a whole model."""
    svg = heads._repr_html_()
    titles = [title.text for title in ElementTree.fromstring(svg).iter(f"{SVG}title")]
    assert [title.split(": ")[0] for title in titles] == [str(head) for head in heads.heads()]
    assert not dashed(svg)


def test_what_goes_is_dashed(heads, model):
    """In a mask and in a plan."""
    mask = hp.HeadMask.random(heads, prune=3, seed=0)
    assert len(dashed(mask._repr_html_())) == 3
    assert len(dashed(hp.plan(model, mask)._repr_html_())) == 3


def test_scores_have_a_frame_and_a_short_repr(heads, model):
    """A row a head, as the scores have them."""
    scores = hp.score(model, method="random", heads=heads)
    table = scores.to_frame()
    assert len(table) == len(heads)
    assert table.loc[0, "score"] == scores.scores["encoder.0"][0]
    assert repr(scores) == "HeadScores(random on unnamed data: 8 heads in 2 sites)"
    assert "<svg" in scores._repr_html_()


def test_masks_maps_and_plans_have_frames(heads, model):
    """With what stays."""
    mask = hp.HeadMask.random(heads, prune=3, seed=0)
    assert mask.to_frame()["kept"].sum() == 5
    assert list(heads.to_frame()["id"]) == ["encoder.0", "encoder.1"]
    assert hp.plan(model, mask).to_frame()["after"].sum() == 5


def test_neurons_are_a_bar(model):
    """With how many are left."""
    svg = hp.find_heads(model, neurons=True).plot().svg
    assert "48 of 48" in svg or " of " in svg


def test_a_picture_is_saved(heads, tmp_path):
    """As a file that is the same SVG."""
    path = heads.plot().save(tmp_path / "map.svg")
    assert path.read_text().startswith("<svg")


def test_a_measurement_shows_its_figures(model):
    """In a line, and as a table."""
    found = hp.measure(model, batch=1, length=8, repeats=0)
    assert f"parameters {found.parameters.total:,}" in repr(found)
    assert f"{found.macs.total:,}" in found._repr_html_()
    assert found.to_frame()["parameters"].sum() == found.parameters.total
