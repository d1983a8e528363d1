"""Results on disk."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

import headprune as hp
from headprune.lab.experiments.store import Store
from headprune.lab.experiments.sweep import Inline, run_sweep
from headprune.lab.experiments.trial import Trial
from headprune.lab.experiments.values import number_at
from headprune.lab.experiments.work import Work, works
from tests.lab.experiments.toy import echoes

KILLED_WRITING = """
import os, signal, sys
from pathlib import Path
from headprune.lab.experiments.store import Store
from headprune.lab.experiments.sweep import Inline, run_sweep
from headprune.lab.experiments.trial import Trial
folder, when = Path(sys.argv[1]), sys.argv[2]
if when == "before the rename":
    Path.replace = lambda self, target: os.kill(os.getpid(), signal.SIGKILL)
else:  # in the middle of the text
    os.fsync = lambda handle: (os.ftruncate(handle, 10), os.kill(os.getpid(), signal.SIGKILL))
run_sweep([Trial(work="echo", params={"number": 2})], Store(folder), Inline())
"""


def test_bad_files_are_told_and_nothing_is_lost(tmp_path):
    """A newer version, a file that was edited, a file that is no JSON."""
    trials, store = echoes(3), Store(tmp_path)
    run_sweep(trials, store, Inline())
    first, second, third = (store.path(trial.key()) for trial in trials)
    content = json.loads(first.read_text())
    first.write_text(json.dumps({**content, "schema": 99}))
    with pytest.raises(hp.HeadpruneError, match="newer headprune"):
        list(store)
    first.write_text(json.dumps({**content, "trial": {**content["trial"], "seed": 5}}))
    with pytest.raises(hp.HeadpruneError, match="edited or damaged"):
        store.get(trials[0].key())
    second.write_text("{")
    with pytest.raises(hp.HeadpruneError, match="not JSON"):
        store.get(trials[1].key())
    assert store.get(trials[2].key()).is_done
    assert third.is_file()


@pytest.mark.parametrize("when", ["before the rename", "in the middle of the text"])
def test_a_kill_while_a_result_is_written_loses_only_that_result(tmp_path, when):
    """No half file under the final name; what was there is as it was."""
    run_sweep(echoes(1), Store(tmp_path), Inline())
    (before,) = list(Store(tmp_path))
    done = subprocess.run([sys.executable, "-c", KILLED_WRITING, str(tmp_path), when], check=False)
    assert done.returncode == -signal.SIGKILL
    assert list(Store(tmp_path)) == [before]
    summary = run_sweep([*echoes(1), Trial(work="echo", params={"number": 2})], Store(tmp_path), Inline())
    assert (summary.done, summary.known) == (1, 1)


def test_what_is_no_number_is_told_in_words(tmp_path, monkeypatch):
    """JSON has no infinity; a value that is one is no number, and says so."""

    def broken(context):
        return {"perplexity": float("inf"), "all": [float("nan"), 1]}

    monkeypatch.setitem(works._items, "broken", Work(broken))
    trial = Trial(work="broken")
    run_sweep([trial], Store(tmp_path), Inline())
    record = Store(tmp_path).get(trial.key())
    assert record.result == {"perplexity": "inf", "all": ["nan", 1]}
    assert number_at(record.result, "perplexity") == "'perplexity' is 'inf', not a number"


def test_files_can_be_read_by_others(tmp_path):
    """As any new file: results and pages are there to be shown."""
    run_sweep(echoes(1), Store(tmp_path), Inline())
    mode = next((tmp_path / "trials").iterdir()).stat().st_mode & 0o777
    (tmp_path / "plain").touch()
    assert mode == (tmp_path / "plain").stat().st_mode & 0o777


@pytest.mark.parametrize(
    ("field", "value"), [("seconds", "x"), ("environment", []), ("result", None), ("error", 3), ("status", "odd")]
)
def test_an_edited_record_is_told_with_its_file(tmp_path, field, value):
    """Whatever was changed in it."""
    run_sweep(echoes(1), Store(tmp_path), Inline())
    path = next((tmp_path / "trials").iterdir())
    path.write_text(json.dumps(json.loads(path.read_text()) | {field: value}))
    with pytest.raises(hp.HeadpruneError, match=path.name):
        list(Store(tmp_path))


def test_results_are_a_frame_in_one_call(tmp_path):
    """A row a trial, parameters and numbers as columns."""
    run_sweep(echoes(3, seed=7), Store(tmp_path), Inline())
    frame = Store(tmp_path).frame()
    assert sorted(frame["result.params.number"]) == [0, 1, 2]
    assert set(frame["seed"]) == {7}
    assert set(frame["status"]) == {"done"}
