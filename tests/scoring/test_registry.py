"""What scorers say of themselves, and scorers of other packages."""

from __future__ import annotations

import pytest

import headprune as hp
from headprune.errors import UnknownNameError, UnsupportedModelError
from headprune.heads.scores import _COMPARABLE_010
from headprune.scoring import scorers
from tests.families.tiny import tiny_model

SCORER = """
import headprune as hp
from headprune.scoring import scorers

@scorers.add("theirs", comparable=True, data_free=True, of_attention=True)
def theirs(job):
    values = {site.id: [float(site.layer)] * site.num_heads for site in job.heads}
    return hp.HeadScores.from_values(job.heads, values, method="theirs")

def bare(job):
    return theirs(job)
"""


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A package with scorers: one that says things of itself, a bare function, and one that cannot be imported."""
    (tmp_path / "their_scorers.py").write_text(SCORER)
    folder = tmp_path / "their_scorers-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: their-scorers\nVersion: 1.0\n")
    offered = "theirs = their_scorers:theirs\nbare = their_scorers:bare\nbroken = their_scorers.nowhere:broken\n"
    (folder / "entry_points.txt").write_text(f"[headprune.scorers]\n{offered}")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in ("theirs", "bare"):
        scorers._items.pop(name, None)


def test_an_installed_package_offers_scorers(installed):
    """Its entry point is loaded when the name is asked for, with what the scorer says of itself."""
    model = tiny_model("bert")
    assert {"theirs", "bare", "broken", "sensitivity"} <= set(scorers)
    assert "theirs" not in scorers._items
    scores = hp.score(model, method="theirs")
    assert scores.comparable
    assert hp.select(scores, prune=4).to_dict() == {"encoder.0": [], "encoder.1": [0, 1, 2, 3]}
    with pytest.raises(UnsupportedModelError, match="looks at attention"):
        hp.score(model, method="theirs", heads=hp.find_heads(model, neurons=True))
    assert not hp.score(model, method="bare").comparable
    with pytest.raises(UnknownNameError, match="Did you mean 'theirs'"):
        hp.score(model, method="thiers")
    with pytest.raises(UnknownNameError, match=r"'broken'.*of their-scorers.*cannot be loaded"):
        hp.score(model, method="broken")


def test_scorers_say_which_scores_compare_across_sites():
    """The same that files of 0.1.0 are taken to mean, but for younger ones; the metric's ablation is no scorer."""
    younger = {"flap", "wanda"}
    assert {name for name in scorers if scorers[name].comparable} - younger == set(_COMPARABLE_010) - {
        "metric-ablation"
    }
    for method in ("random", "magnitude"):
        scores = hp.score(tiny_model("bert"), method=method)
        stored = scores.to_dict()
        assert stored["comparable"] is scores.comparable is (method == "random")
        del stored["comparable"]  # as 0.1.0 wrote it
        assert hp.HeadScores.from_dict(stored) == scores


def test_scores_added_up_compare_across_sites_if_all_do():
    """A part that does not takes the sum with it."""
    scores = hp.score(tiny_model("bert"), method="random")
    other = hp.HeadScores.from_dict({**scores.to_dict(), "comparable": False})
    assert (scores + scores).comparable
    assert not (scores + other).comparable
    assert not (other + scores).comparable
