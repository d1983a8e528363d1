"""A training goes on from the newest checkpoint that can be read, and says which it passed over."""

from __future__ import annotations

import logging
import shutil

import pytest
from tools.fuzz.interrupted import damaged_checkpoint, training_checkpoints

from headprune.checkpoint.training_state import fault_of, newest_whole


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return training_checkpoints(tmp_path_factory.mktemp("run"))


def newest(run):
    return max(run.glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]))


def test_every_file_of_a_checkpoint_is_looked_into(run):
    """Cut to nothing, to a half, by a little: the run goes on from the one before it."""
    last = newest(run)
    files = sorted(path for path in last.rglob("*") if path.is_file())
    assert {"model.safetensors", "optimizer.pt", "scheduler.pt", "trainer_state.json"} <= {path.name for path in files}
    lost = [damaged_checkpoint(run, path, size) for path in files for size in (0.0, 0.5, 0.99)]
    assert not [what for what in lost if what]
    assert newest_whole(run) == last


@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "model.safetensors", "trainer_state.json"])
def test_a_checkpoint_without_one_of_its_files_is_none(run, tmp_path, name):
    """The Trainer would go on with a new optimizer and not say so."""
    copy = shutil.copytree(newest(run), tmp_path / "checkpoint-2")
    assert fault_of(copy) is None
    (copy / name).unlink()
    assert fault_of(copy) is not None


def test_what_is_passed_over_is_told_and_set_aside(run, tmp_path, caplog):
    """Or the Trainer, which keeps the last by number, would remove the good ones."""
    folder = shutil.copytree(run, tmp_path / "run")
    last = newest(folder)
    (last / "optimizer.pt").write_bytes(b"")
    with caplog.at_level(logging.WARNING, "headprune"):
        found = newest_whole(folder)
    assert found is not None
    assert found != last
    assert f"'{last}' is passed over: optimizer.pt cannot be read" in caplog.text
    assert not last.exists()
    assert (folder / f"damaged-{last.name.rpartition('-')[2]}").is_dir()
