"""Files that anybody may have touched: a loader loads them or says what is wrong, and does nothing else."""

from __future__ import annotations

import pickle
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from tools.fuzz import run, targets
from tools.fuzz.targets import TARGETS, Target
from tools.fuzz.watching import Watch

from headprune.errors import HeadpruneError

SLOW = {"checkpoint", "finished-gates", "pruned-entry", "pruned-heads", "report", "weights"}
QUICK = sorted(set(TARGETS) - SLOW)


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_every_kept_file_is_loaded_or_refused_in_words(name):
    """Valid files load; those that broke a loader once, or were written to, do so no more."""
    files = sorted((run.CORPUS / name).iterdir())
    assert any(path.name.startswith("valid-") for path in files)
    with run.scratch() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run.tried(name, files[-1].read_bytes(), folder)  # what is imported late is no part of an input's time
        for path in files:
            outcome, what, where = run.tried(name, path.read_bytes(), folder)
            assert outcome in (("loaded",) if path.name.startswith("valid-") else ("loaded", "refused")), (
                f"{path.name}: {what} [{where}]"
            )


@pytest.mark.parametrize("name", QUICK)
def test_altered_files_are_loaded_or_refused_in_words(name):
    """Two hundred altered files of each kind, the same every time."""
    done = run.fuzz(name, 200, seed=1)
    assert done.inputs == 200
    assert not done.findings, "\n".join(f"{one.what} [{one.where}]" for one in done.findings.values())


def test_the_same_seed_gives_the_same_files(monkeypatch):
    """A finding can be made again from the number of its run."""
    made: list[list[bytes]] = []
    for _ in range(2):
        seen: list[bytes] = []
        monkeypatch.setitem(TARGETS, "mask", Target(lambda data, folder, seen=seen: seen.append(data), "json"))
        run.fuzz("mask", 30, seed=5)
        made.append(seen[-30:])
    assert made[0] == made[1]
    assert len(set(made[0])) > 20


def _noticed(folder, action) -> list[str]:
    with Watch(folder, 60) as watch:
        action()
    return watch.seen


def test_a_file_written_elsewhere_is_noticed(tmp_path):
    """Inside the folder a loader may write; beside it, or by a name that leads out of it, not."""
    inside = tmp_path / "inside"
    inside.mkdir()
    assert not _noticed(inside, lambda: (inside / "x").write_text("x"))
    assert any(s.startswith("write") for s in _noticed(inside, lambda: (tmp_path / "x").write_text("x")))
    assert any(s.startswith("write") for s in _noticed(inside, lambda: (inside / ".." / "y").write_text("y")))
    assert any(s.startswith("os.mkdir") for s in _noticed(inside, lambda: (tmp_path / "folder").mkdir()))
    assert any(s.startswith("read") for s in _noticed(inside, lambda: (tmp_path / "x").read_text()))


def test_code_that_runs_is_noticed(tmp_path, monkeypatch):
    """Text that is compiled, a command, a pickle, a module that lies beside the data."""
    assert any(s.startswith("compile") for s in _noticed(tmp_path, lambda: eval("1 + 1")))
    ran = _noticed(tmp_path, lambda: subprocess.run([sys.executable, "-c", ""], check=True))
    assert any(s.startswith("subprocess.Popen") for s in ran)
    stored = pickle.dumps(Path("x"))
    assert any(s.startswith("pickle.find_class") for s in _noticed(tmp_path, lambda: pickle.loads(stored)))
    (tmp_path / "headprune_fuzz_beside.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = _noticed(tmp_path, lambda: __import__("headprune_fuzz_beside"))
    assert "import: headprune_fuzz_beside" in found


def _endless() -> None:
    while True:
        pass


@pytest.mark.parametrize(
    ("loader", "what"),
    [
        (lambda data, folder: {}["x"], "KeyError"),
        (lambda data, folder: (folder.parent / "x").write_bytes(data), "write"),
        (lambda data, folder: eval("1"), "compile"),
        (lambda data, folder: _endless(), "time"),
        (lambda data, folder: bytearray(8 << 30), "MemoryError"),
        (lambda data, folder: len(b"x" * (600 << 20)), "memory"),
    ],
)
def test_a_bad_loader_is_a_finding(monkeypatch, loader, what):
    """The harness itself can fail: each thing that a loader may not do is told."""
    monkeypatch.setitem(TARGETS, "mask", Target(loader, "json", seconds=0.5 if what == "time" else 60))
    with run.scratch() as folder:
        outcome, told, _ = run.tried("mask", b"{}", folder)
    assert outcome == "finding"
    assert told.startswith(what)


def test_a_headprune_error_is_no_finding(monkeypatch):
    """To refuse a file in words is what a loader is for; without words it is not."""

    def refuse(data: bytes, folder: Path) -> None:
        raise HeadpruneError(data.decode())

    monkeypatch.setitem(TARGETS, "mask", Target(refuse, "json"))
    with run.scratch() as folder:
        assert run.tried("mask", b"why", folder)[0] == "refused"
        assert run.tried("mask", b"", folder)[0] == "finding"


def test_every_target_has_a_corpus():
    """And every folder of the corpus a target."""
    assert {path.name for path in run.CORPUS.iterdir()} == set(targets.TARGETS)
