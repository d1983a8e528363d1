"""The commands: what they write, print and refuse."""

from __future__ import annotations

import pytest

from headprune.errors import CheckpointError, DataError, HeadpruneError, MaskError
from tests.command import call

BAD = {
    "unknown head": (["--heads", "encoder.0:9", "--dry-run"], "encoder.0:9"),
    "unknown site": (["--heads", "encoder.7", "--dry-run"], "encoder.7"),
    "a layer's number": (["--heads", "1:2", "--dry-run"], "Did you mean 'encoder.1'"),
    "nothing chosen": (["--dry-run"], "Say which heads go"),
    "two choices": (["--prune", "1", "--keep", "1", "--dry-run"], "one of"),
    "no place": (["--prune", "1"], "--out"),
    "bad amount": (["--prune", "half", "--dry-run"], "50%"),
    "bad unit": (["--prune", "1", "--unit", "gruop", "--dry-run"], "Did you mean 'group'"),
    "bad gqa": (["--prune", "1", "--gqa", "x", "--dry-run"], "'group', 'query', 'expand'"),
    "missing mask": (["--mask", "nowhere.json", "--dry-run"], "nowhere.json"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_gets_a_clear_error(case, models):
    """What was found, what was expected."""
    words, told = BAD[case]
    with pytest.raises(HeadpruneError, match=told.replace("'", ".").replace("(", r"\(")):
        call("prune", models / "bert", *words)


def test_errors_are_one_line_unless_debugging(models, capsys, monkeypatch):
    """No traceback for a typo; --debug shows it."""
    from headprune.cli import main

    monkeypatch.setattr("sys.argv", ["headprune", "inspect", str(models / "nowhere")])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 1
    told = capsys.readouterr().err.strip().splitlines()
    assert told[-2].startswith("error: ")
    assert told[-1] == "(more: headprune explain CheckpointError)"
    monkeypatch.setattr("sys.argv", ["headprune", "--debug", "inspect", str(models / "nowhere")])
    with pytest.raises(HeadpruneError):
        main()
    monkeypatch.setattr("headprune.cli.options.state.debug", False)


def test_a_fault_of_ours_is_told_without_a_traceback(capsys, monkeypatch):
    """It asks for a report; --debug shows where it was."""
    from headprune.cli import main

    def broken(*words):
        raise ZeroDivisionError("by nothing")

    monkeypatch.setattr("headprune.cli.app.app", broken)
    monkeypatch.setattr("headprune.cli.options.state.debug", False)
    with pytest.raises(SystemExit) as stop:
        main()
    told = capsys.readouterr().err
    assert stop.value.code == 1
    assert told.startswith("unexpected error: ZeroDivisionError: by nothing")
    assert "headprune doctor" in told
    assert "Traceback" not in told
    monkeypatch.setattr("headprune.cli.options.state.debug", True)
    with pytest.raises(ZeroDivisionError):
        main()


def test_a_model_that_is_not_there_is_told_with_what_was_meant(trained, tmp_path):
    """A typo, a hub name, and a run that was not finished."""
    with pytest.raises(CheckpointError, match=r"no such folder .did you mean '.*tuned'"):
        call("inspect", trained / "tunned")
    with pytest.raises(CheckpointError, match="no such folder, and as the name of a model on the hub"):
        call("inspect", "nobody/nothing")
    (tmp_path / "begun" / "checkpoints").mkdir(parents=True)
    with pytest.raises(CheckpointError, match="not finished"):
        call("inspect", tmp_path / "begun")


def test_an_interrupted_command_says_that_it_goes_on(monkeypatch, capsys):
    """And gives back what shells expect."""
    from headprune.cli import main

    def stop(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("headprune.jobs.inspect.load_model", stop)
    monkeypatch.setattr("sys.argv", ["headprune", "inspect", "anything"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130
    assert "the same command goes on" in capsys.readouterr().err


def test_what_is_missing_is_told(trained, tmp_path, monkeypatch):
    """Data, a budget without an order, a budget without a task, no order."""
    monkeypatch.delenv("HEADPRUNE_DATA", raising=False)
    with pytest.raises(DataError, match="HEADPRUNE_DATA"):
        call("score", trained / "tuned", "--out", tmp_path)
    with pytest.raises(MaskError, match="--scores"):
        call("prune", trained / "tuned", "--max-drop", 1, "--dry-run")
    with pytest.raises(MaskError, match="--task"):
        call("prune", trained / "tuned", "--max-drop", 1, "--scores", trained / "scores" / "scores.json", "--dry-run")
    with pytest.raises(DataError, match="No order"):
        call("curve", trained / "tuned", "--data-dir", trained / "data", "--random", 0, "--out", tmp_path)
    with pytest.raises(HeadpruneError):
        call("score", trained / "tuned", "--task", "nli", "--data-dir", trained / "data", "--out", tmp_path)


def test_unreadable_files_are_told(trained, tmp_path):
    """Scores and masks that are not there."""
    where = ("--data-dir", trained / "data", "--out", tmp_path)
    with pytest.raises(HeadpruneError, match="nowhere"):
        call("curve", trained / "tuned", "--scores", tmp_path / "nowhere.json", *where)
    with pytest.raises(HeadpruneError, match="nowhere"):
        call("finetune", trained / "model", "--mask", tmp_path / "nowhere.json", *where)
