"""The inline runner: nothing is lost, nothing is done twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

import headprune as hp
from headprune.lab.experiments.store import Record, Store
from headprune.lab.experiments.sweep import Inline, Sweep, run_sweep
from headprune.lab.experiments.trial import Trial
from headprune.lab.experiments.work import Work, works
from tests.lab.experiments.toy import echoes


@pytest.fixture
def counted(monkeypatch):
    """A work that counts how often it was done and fails where it is told to."""
    calls: list[int] = []

    def count(context):
        calls.append(context.params["number"])
        if context.params.get("fails"):
            raise hp.HeadpruneError("it was told to")
        if context.params.get("breaks"):
            raise ZeroDivisionError("by nothing")
        (context.folder / "seen.txt").write_text(str(context.params["number"]))
        return {"number": context.params["number"], "of": sum(n.result["number"] for n in context.needs.values())}

    monkeypatch.setitem(works._items, "count", Work(count))
    return calls


def test_a_finished_trial_is_never_run_again(tmp_path, counted):
    """On a half-done folder the rest is run; results, seeds, times and versions are stored."""
    trials = [Trial(work="count", params={"number": n}, seed=n) for n in range(4)]
    run_sweep(trials[:2], Store(tmp_path), Inline())
    summary = run_sweep(trials, Store(tmp_path), Inline())
    assert counted == [0, 1, 2, 3]
    assert (summary.done, summary.known) == (2, 2)
    record = Store(tmp_path).get(trials[3].key())
    assert record is not None
    assert record.result == {"number": 3, "of": 0}
    assert record.trial.seed == 3
    assert record.environment["versions"]["torch"]
    assert (tmp_path / "work" / trials[3].key() / "seen.txt").read_text() == "3"


def test_needs_come_first_and_are_handed_over(tmp_path, counted):
    """Given in any order."""
    first = Trial(work="count", params={"number": 5})
    second = Trial(work="count", params={"number": 7}, needs={"before": first.key()})
    third = Trial(work="count", params={"number": 9}, needs={"a": first.key(), "b": second.key()})
    run_sweep([third, second, first], Store(tmp_path), Inline())
    assert counted == [5, 7, 9]
    assert Store(tmp_path).get(third.key()).result["of"] == 12
    with pytest.raises(hp.HeadpruneError, match="needs 'a'"):
        Sweep([third], Store(tmp_path / "other"))


def test_a_failed_trial_is_told_and_run_again_on_request(tmp_path, counted):
    """The others go on; what needs it waits; its folder is emptied before it is tried again."""
    bad = Trial(work="count", params={"number": 1, "fails": True})
    worse = Trial(work="count", params={"number": 2, "breaks": True})
    after = Trial(work="count", params={"number": 3}, needs={"bad": bad.key()})
    good = Trial(work="count", params={"number": 4})
    summary = run_sweep([bad, worse, after, good], Store(tmp_path), Inline())
    assert summary.done == 1
    assert [record.error.splitlines()[-1] for record in summary.failed] == [
        "HeadpruneError: it was told to", "ZeroDivisionError: by nothing",
    ]  # fmt: skip
    assert [trial.params["number"] for trial in summary.blocked] == [3]
    run_sweep([bad, worse, after, good], Store(tmp_path), Inline())
    assert counted == [1, 2, 4]
    (tmp_path / "work" / bad.key() / "left.txt").write_text("over")
    run_sweep([bad, worse, after, good], Store(tmp_path), Inline(), retry=True)
    assert counted == [1, 2, 4, 1, 2]
    assert not (tmp_path / "work" / bad.key() / "left.txt").exists()


def test_equal_trials_are_one(tmp_path, counted):
    """Two steps of two presets may be the same work."""
    twin = [Trial(work="count", params={"number": 1}, step=step) for step in ("a", "b")]
    run_sweep(twin, Store(tmp_path), Inline())
    assert counted == [1]


def test_two_runs_on_one_folder_at_once_are_refused(tmp_path):
    """The second touches nothing."""
    store = Store(tmp_path)
    with store.locked():
        code = (
            "from pathlib import Path; from headprune.lab.experiments.store import Store\n"
            f"with Store(Path({str(tmp_path)!r})).locked(): pass"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert "Another process runs" in done.stderr
    run_sweep(echoes(1), store, Inline())


KILLED = """
import sys, time
from pathlib import Path
from headprune.lab.experiments.store import Store
from headprune.lab.experiments.sweep import Inline, run_sweep
from headprune.lab.experiments.trial import Trial
from headprune.lab.experiments.work import work
folder = Path(sys.argv[1])
@work("slow")
def slow(context):
    with (folder / "calls.txt").open("a") as file:
        file.write(f"{context.params['number']}\\n")
    time.sleep(0.05)
    return {"number": context.params["number"], "much": "x" * 200_000}
trials = [Trial(work="slow", params={"number": n}) for n in range(12)]
run_sweep(trials, Store(folder), Inline())
"""


def test_a_killed_sweep_goes_on_and_repeats_nothing_that_was_finished(tmp_path):
    """SIGKILL at any moment."""
    finished: set[str] = set()
    for attempt in range(6):
        process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)])
        deadline = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline:
            done = (
                {path.stem for path in (tmp_path / "trials").glob("*.json")}
                if (tmp_path / "trials").is_dir()
                else set()
            )
            if attempt < 5 and len(done) >= len(finished) + 2:
                time.sleep(0.013 * attempt)
                os.kill(process.pid, signal.SIGKILL)
                process.wait()
        assert finished <= {record.trial.key() for record in Store(tmp_path)}
        finished = {record.trial.key() for record in Store(tmp_path) if record.is_done}
        if len(finished) == 12:
            break
    assert len(finished) == 12
    calls = (tmp_path / "calls.txt").read_text().split()
    assert set(calls) == {str(number) for number in range(12)}
    assert len(calls) <= 12 + 5  # one under way a kill


def test_ctrl_c_comes_through_and_keeps_what_is_done(tmp_path, monkeypatch):
    """A finished trial is stored before the next begins."""

    def stop(context):
        if context.params["number"] == 2:
            raise KeyboardInterrupt
        return {}

    monkeypatch.setitem(works._items, "stop", Work(stop))
    trials = [Trial(work="stop", params={"number": n}) for n in range(4)]
    with pytest.raises(KeyboardInterrupt):
        run_sweep(trials, Store(tmp_path), Inline())
    assert len(Store(tmp_path)) == 2


def test_overhead_of_trivial_trials_is_small(tmp_path):
    """Under 20 ms each; a store of them opens quickly. Benchmarks measure the rest."""
    begun = time.perf_counter()
    run_sweep(echoes(200), Store(tmp_path), Inline())
    assert (time.perf_counter() - begun) / 200 < 0.02
    assert isinstance(next(iter(Store(tmp_path))), Record)
