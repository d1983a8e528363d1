"""What was run in a folder is known there."""

from __future__ import annotations

import json

import pytest

import headprune as hp
from headprune.lab.experiments.runs import read_runs
from headprune.lab.experiments.store import Store
from tests.lab.experiments.toy import preset, ran


def test_a_folder_knows_what_it_is_for(tmp_path):
    """Every preset once, as it was, with the trials of all its seeds; a damaged note is told."""
    store = Store(tmp_path)
    ran(store, preset("a"))
    ran(store, preset("a"), seeds=[3])
    ran(store, preset("b", "tell"))
    first, second = read_runs(store)
    assert (first.preset.name, second.preset.name) == ("a", "b")
    assert [record.trial.seed for record in first.records(store)] == [1, 1, 2, 2, 3, 3]
    # The same work under two names is one trial, and each preset finds it under its own.
    assert len(store) == 6
    assert {record.trial.step for record in second.records(store)} == {"tell"}
    assert [value.found for value in second.values(second.records(store))] == [(1.0, 1.0), (4.0, 4.0)]
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(hp.HeadpruneError, match="cannot be read"):
        read_runs(store)
    (tmp_path / "run.json").write_text(json.dumps({"schema": 99, "runs": []}))
    with pytest.raises(hp.HeadpruneError, match="newer headprune"):
        read_runs(store)


def test_a_preset_that_cannot_be_read_any_more_is_left_out_and_not_lost(tmp_path):
    """Its neighbours are as they were, and so is its note."""
    store = Store(tmp_path)
    ran(store, preset("a"), preset("b", "tell"))
    notes = json.loads((tmp_path / "run.json").read_text())
    notes["runs"][0]["source"] = notes["runs"][0]["source"].replace('work = "echo"', 'chain = "gone"')
    (tmp_path / "run.json").write_text(json.dumps(notes))
    assert [run.preset.name for run in read_runs(store)] == ["b"]
    ran(store, preset("b", "tell"), seeds=[3])
    kept = json.loads((tmp_path / "run.json").read_text())["runs"]
    assert kept[0] == notes["runs"][0]
    assert [run.asked for run in read_runs(store)] == [((), (3,))]


def test_steps_that_changed_are_other_work(tmp_path):
    """The text of a preset may stay while a shared step changes: old and new trials are not mixed."""
    store = Store(tmp_path)
    ran(store, preset("a"))
    notes = json.loads((tmp_path / "run.json").read_text())
    notes["runs"][0]["steps"] = "of an older version"
    (tmp_path / "run.json").write_text(json.dumps(notes))
    ran(store, preset("a"))
    assert len(read_runs(store)) == 2


@pytest.mark.parametrize(("part", "value"), [("asked", [["x"]]), ("trials", {"k": {"label": "x"}}), ("steps", 3)])
def test_a_damaged_note_is_told(tmp_path, part, value):
    """Whatever part of it."""
    store = Store(tmp_path)
    ran(store, preset("a"))
    notes = json.loads((tmp_path / "run.json").read_text())
    notes["runs"][0][part] = value
    (tmp_path / "run.json").write_text(json.dumps(notes))
    with pytest.raises(hp.HeadpruneError, match="cannot be read"):
        read_runs(store)
