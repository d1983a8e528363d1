"""One bar for the whole sweep, on a real terminal."""

from __future__ import annotations

import os
import pty

from tests.programs import exit_code

PRESET = """
name = "two"
study = "none"
line = "none"
what = "two short trainings"

[small]
inputs = { text = "text" }
seeds = [1, 2]

[[small.steps]]
name = "model"
command = "train-lm"
options = { data-dir = "{text}", preset = "tiny", updates = 2, validate-examples = 2, seed = "{seed}" }
"""


def on_a_terminal(programs, *words):
    """What a command shows on a terminal."""
    master, slave = pty.openpty()
    running = programs.begin("-m", "headprune", *words, streams=(slave,) * 3, COLUMNS="120")
    os.close(slave)
    shown = b""
    while True:
        try:
            part = os.read(master, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        shown += part
    os.close(master)
    assert exit_code(running) == 0, shown.decode()
    return shown.decode()


def test_the_bar_moves_while_trials_run_and_starts_where_it_was(tmp_path, programs):
    """Commands write their own output to a log; the bar of the sweep is not theirs."""
    (tmp_path / "text").mkdir()
    for part, count in (("train", 40), ("dev", 8)):
        (tmp_path / "text" / f"{part}.txt").write_text("the cat sat on the mat. " * count)
    (tmp_path / "two.toml").write_text(PRESET)
    words = ("run", tmp_path / "two.toml", "--input", f"text={tmp_path / 'text'}", "--out", tmp_path / "runs")
    shown = on_a_terminal(programs, *words, "--seeds", 1)
    assert "0/1" in shown
    shown = on_a_terminal(programs, *words)
    assert "0/2" not in shown  # one is known already
    assert "1/2" in shown
    assert "done: model, seed 2" in shown
    assert "it/s" not in shown  # the training's own bar is in its log
    assert "1 trials run, 1 known already" in shown
