"""--out: a model is not replaced, and a folder of others not written into, unless that was asked for."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections import namedtuple

import pytest

from headprune.checkpoint import out_folder
from headprune.checkpoint.out_folder import check_room, open_out
from headprune.errors import CheckpointError
from headprune.jobs.job import find_options, job_names
from headprune.jobs.options.base import option_fields
from headprune.jobs.options.prune import PruneOptions
from headprune.jobs.options.score import ScoreOptions


def test_every_command_with_a_folder_can_be_forced():
    """`report` writes pages, not a folder."""
    names = {name: {field.name for field in option_fields(find_options(name))} for name in job_names()}
    assert {name for name, fields in names.items() if "out" in fields} - {"report"} == {
        name for name, fields in names.items() if "force" in fields
    }


def asked(tmp_path, **more):
    return PruneOptions(model=str(tmp_path / "model"), out=tmp_path / "out", **more)


def test_a_model_is_kept_if_it_is_the_one_asked_for_and_not_replaced_if_it_is_another(tmp_path):
    """By a note among its files: the command, its options and the state of its inputs."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    first = open_out("prune", asked(tmp_path), holds_model=True)
    assert not first.is_finished
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"holds another model \(config\.json\).*--force"):
        open_out("prune", asked(tmp_path), holds_model=True)
    first.note(tmp_path / "out")
    assert not open_out("prune", asked(tmp_path), holds_model=True).is_finished  # its result is missing
    (tmp_path / "out" / "prune.json").write_text("{}")
    assert open_out("prune", asked(tmp_path), holds_model=True).is_finished
    assert open_out("prune", asked(tmp_path, device="cuda"), holds_model=True).is_finished
    assert not open_out("prune", asked(tmp_path, force=True), holds_model=True).is_finished
    with pytest.raises(CheckpointError, match="`headprune prune` made of other inputs or settings"):
        open_out("prune", asked(tmp_path, seed=1), holds_model=True)
    os.utime(tmp_path / "model" / "config.json", (1, 1))
    with pytest.raises(CheckpointError, match="other inputs"):
        open_out("prune", asked(tmp_path), holds_model=True)


def test_a_folder_of_others_is_named_and_not_written_into(tmp_path):
    """Unless headprune was there before."""
    options = ScoreOptions(model="m", out=tmp_path)
    open_out("score", options)
    for name in ("a.csv", "b.csv", "c.csv", "d.csv", "e.csv"):
        (tmp_path / name).write_text("")
    with pytest.raises(CheckpointError, match=r"did not make: a\.csv, b\.csv, c\.csv, d\.csv and 1 more"):
        open_out("score", options)
    open_out("score", dataclasses.replace(options, force=True))
    (tmp_path / "curve.json").write_text("")
    open_out("score", options)


COMMON = ["run.json", "settings.json", "scores.json", "heads.json", "verdict.json", "trials/notes.txt"]


@pytest.mark.parametrize("name", COMMON)
def test_a_folder_of_others_is_not_taken_for_ours_by_a_common_name(tmp_path, name):
    """Others have a settings.json, too."""
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text('{"font": 12}')
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(CheckpointError, match="holds what headprune did not make"):
        open_out("score", ScoreOptions(model="m", out=tmp_path))


BEGUN = ["checkpoints/run.json", "lambda-0.1/checkpoints/run.json", "unfinished/x", "lock", "work/0123/x"]


@pytest.mark.parametrize("begun", BEGUN)
def test_an_unfinished_run_may_go_on(tmp_path, begun):
    """It is known by what a training or a long work leaves while it is under way."""
    (tmp_path / begun).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "empty").mkdir()  # a command that was killed at once
    (tmp_path / begun).write_text("{}")
    open_out("finetune", ScoreOptions(model="m", out=tmp_path), holds_model=True)


def test_a_disk_without_room_is_told_before_the_work(tmp_path, monkeypatch):
    """With what is there and what it takes."""
    monkeypatch.setattr(shutil, "disk_usage", lambda place: namedtuple("Usage", "free")(5_000_000))
    check_room(tmp_path / "new" / "deep", 4_000_000, "the model")
    with pytest.raises(CheckpointError, match="has 5 MB left; the model takes 6 MB"):
        check_room(tmp_path / "new" / "deep", 6_000_000, "the model")
    assert out_folder.NOTE.startswith(".")  # it does not come along when the model is copied
