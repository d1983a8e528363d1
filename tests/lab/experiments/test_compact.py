"""Results as they are kept in a repository."""

from __future__ import annotations

import pytest

import headprune as hp
from headprune.lab.experiments.compact import compacted
from headprune.lab.experiments.runs import read_runs
from headprune.lab.experiments.store import Record, Store, environment
from headprune.lab.experiments.trial import Trial
from tests.lab.experiments.toy import preset, ran


def test_values_and_statements_survive(tmp_path):
    """Another folder with the same findings, without models and without the name of the machine."""
    store = Store(tmp_path / "runs")
    ran(store, preset(), seeds=[1, 2, 3])
    assert compacted(store, tmp_path / "kept") == 6
    (before,), (after,) = (read_runs(one) for one in (store, Store(tmp_path / "kept")))
    found = [
        run.claims(run.values(run.records(one))) for run, one in ((before, store), (after, Store(tmp_path / "kept")))
    ]
    assert [claim.to_dict() for claim in found[0]] == [claim.to_dict() for claim in found[1]]
    assert not (tmp_path / "kept" / "work").exists()
    assert all("host" not in record.environment for record in Store(tmp_path / "kept"))


def test_pages_of_heads_are_left_out(tmp_path):
    """Of a head its score stays, of a point of a curve its place and score; failed trials are not kept."""
    store = Store(tmp_path / "runs")
    result = {
        "heads": {"encoder.0:1": {"score": 0.123456789, "p": 0.5}}, "base": {"score": 1},
        "curves": {"x": [{"points": [{"share": 0.5, "score": 2.0, "kept": {"encoder.0": [1]}}]}]}, "trajectory": [1, 2],
    }  # fmt: skip
    one = Record(trial=Trial(work="echo"), status="done", result=result, environment=environment())
    store.put(one)
    store.put(Record(trial=Trial(work="echo", seed=2), status="failed", error="no"))
    assert compacted(store, tmp_path / "kept") == 1
    (kept,) = Store(tmp_path / "kept")
    assert kept.result == {
        "heads": {"encoder.0:1": {"score": 0.123457}}, "base": {"score": 1},
        "curves": {"x": [{"points": [{"share": 0.5, "score": 2.0}]}]},
    }  # fmt: skip


def test_a_folder_without_trials_is_told(tmp_path):
    """A wrong path would else look like a study without results."""
    with pytest.raises(hp.HeadpruneError, match="holds no trials"):
        compacted(Store(tmp_path), tmp_path / "kept")
