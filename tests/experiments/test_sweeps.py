"""Trials, their store and the inline runner: nothing is lost, nothing is done twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headprune as hp
from headprune.lab.experiments.store import Record, Store
from headprune.lab.experiments.sweep import Inline, Sweep, run_sweep
from headprune.lab.experiments.trial import Trial
from headprune.lab.experiments.values import number_at
from headprune.lab.experiments.work import works

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**6), 10**6)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def echoes(count: int, **more) -> list[Trial]:
    return [Trial(work="echo", params={"number": number}, step="echo", **more) for number in range(count)]


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

    monkeypatch.setitem(works._items, "count", count)
    return calls


@given(params=st.dictionaries(st.text(), JSON, max_size=4), seed=st.integers(0, 99))
def test_a_trial_has_the_same_key_after_a_file(params, seed):
    """Through JSON and back, in any order of names."""
    trial = Trial(work="echo", params=params, seed=seed)
    again = Trial.from_dict(json.loads(json.dumps(trial.to_dict())))
    turned = Trial(work="echo", params=dict(reversed(list(params.items()))), seed=seed)
    assert trial.key() == again.key() == turned.key()


def test_whatever_decides_the_result_changes_the_key():
    """Work, parameters, seed, needs; not the names for people."""
    base = Trial(work="echo", params={"a": 1})
    others = [
        Trial(work="other", params={"a": 1}), Trial(work="echo", params={"a": 2}),
        Trial(work="echo", params={"a": 1.5}), Trial(work="echo", params={"a": 1}, seed=1),
        Trial(work="echo", params={"a": 1}, needs={"b": "0" * 16}),
    ]  # fmt: skip
    assert len({trial.key() for trial in (base, *others)}) == 6
    assert Trial(work="echo", params={"a": 1}, label="x", step="y").key() == base.key()


def test_the_same_work_under_other_names_is_the_same_trial():
    """Names of needs, inputs and parameters are a preset's own affair; what they stand for is not."""

    def made(need, given, key="a" * 16, data="b" * 16):
        options = {"model": f"{{{need}}}/out", "data": f"{{{given}}}"}
        params = {"options": options, "inputs": {given: data}, "values": {need: 1}}
        return Trial(work="echo", params=params, needs={need: key}).key()

    assert made("cut", "text") == made("pruned", "books")
    assert made("cut", "text") != made("cut", "text", key="c" * 16)
    assert made("cut", "text") != made("cut", "text", data="c" * 16)


def test_keys_do_not_change_between_versions():
    """Stored results would be lost: a known trial keeps its key."""
    assert Trial(work="echo", params={"share": 0.5, "names": ["a", "b"]}, seed=3).key() == "8e8bbf7ec16b4221"


def test_parameters_that_are_no_json_are_refused():
    """And nobody changes them from outside."""
    with pytest.raises(hp.HeadpruneError, match="plain JSON"):
        Trial(work="echo", params={"a": float("nan")})
    given = {"list": [1]}
    trial = Trial(work="echo", params=given)
    key = trial.key()
    given["list"].append(2)
    assert trial.key() == key


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
from headprune.lab.experiments.work import works
folder = Path(sys.argv[1])
@works.add("slow")
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
    monkeypatch.setitem(works._items, "broken", lambda context: {"perplexity": float("inf"), "all": [float("nan"), 1]})
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


def test_ctrl_c_comes_through_and_keeps_what_is_done(tmp_path, monkeypatch):
    """A finished trial is stored before the next begins."""

    def stop(context):
        if context.params["number"] == 2:
            raise KeyboardInterrupt
        return {}

    monkeypatch.setitem(works._items, "stop", stop)
    trials = [Trial(work="stop", params={"number": n}) for n in range(4)]
    with pytest.raises(KeyboardInterrupt):
        run_sweep(trials, Store(tmp_path), Inline())
    assert len(Store(tmp_path)) == 2


def test_results_are_a_frame_in_one_call(tmp_path):
    """A row a trial, parameters and numbers as columns."""
    run_sweep(echoes(3, seed=7), Store(tmp_path), Inline())
    frame = Store(tmp_path).frame()
    assert sorted(frame["result.params.number"]) == [0, 1, 2]
    assert set(frame["seed"]) == {7}
    assert set(frame["status"]) == {"done"}


def test_overhead_of_trivial_trials_is_small(tmp_path):
    """Under 20 ms each; a store of them opens quickly. Benchmarks measure the rest."""
    begun = time.perf_counter()
    run_sweep(echoes(200), Store(tmp_path), Inline())
    assert (time.perf_counter() - begun) / 200 < 0.02
    assert isinstance(next(iter(Store(tmp_path))), Record)
