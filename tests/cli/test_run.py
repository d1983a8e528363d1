"""`headprune run`."""

from __future__ import annotations

import json

import pytest

import headprune as hp
from headprune.lab.experiments.library import find_preset
from tests.command import invoked

CHAIN = """
name = "chain"
study = "toy"
line = "none"
what = "a real model through real commands"

[small]
inputs = { text = "text" }
seeds = [1, 2]

[[small.steps]]
name = "model"
command = "train-lm"
options = { data-dir = "{text}", preset = "tiny", updates = 12, test = "test", seed = "{seed}" }

[[small.steps]]
name = "gated"
command = "gates"
arguments = ["{model}"]
needs = ["model"]
each = { weight = [0.01, 1.0] }
[small.steps.options]
task = "stream-lm"
data-dir = "{text}"
max-length = 16
gate = "binary-concrete"
lambda = "{weight}"
updates = 6
gate-lr = 2.0
seed = "{seed}"

[[small.values]]
name = "bits of the whole model"
step = "model"
path = "test/score"

[[small.values]]
name = "heads left"
step = "gated"
path = "results/0/heads/1"
where = { weight = 1.0 }
"""


def test_run_repeats_a_figure_and_says_what_the_paper_says(tmp_path):
    """And does nothing twice."""
    out = invoked("run", "shim-figure-1", "voita-figure-6", "--out", tmp_path / "runs").stdout
    assert "Transformer-XL, MACs left at 50 %: 0.7319 (paper: 0.73)" in out
    assert "2 trials run, 0 known already" in out
    again = json.loads(invoked("run", "shim-figure-1", "--out", tmp_path / "runs", "--json").stdout)
    assert (again["done"], again["known"]) == (0, 1)
    found = {value["name"]: value for value in again["presets"]["shim-figure-1"]}
    assert found["All-attention, MACs left at 50 %"]["mean"] == pytest.approx(0.5)
    invoked("run", "shim-figure-1", "--out", tmp_path / "runs", "--csv", tmp_path / "table.csv")
    assert "shim" not in (tmp_path / "table.csv").read_text().splitlines()[0]
    assert len((tmp_path / "table.csv").read_text().splitlines()) == 3


def test_run_shows_copies_and_refuses(tmp_path, monkeypatch):
    """Near misses, files that are there, inputs that are not given."""
    monkeypatch.chdir(tmp_path)
    assert invoked("run", "--show", "shim-table-3").stdout.startswith('name = "shim-table-3"')
    invoked("run", "--copy", "shim-figure-1", "mine.toml")
    assert find_preset("mine.toml").name == "mine"
    assert "savings" in invoked("run", "mine.toml", "--dry-run").stdout
    for words, told in (
        (("shim-figure1",), "Did you mean 'shim-figure-1'"),
        ((), "Which preset"),
        (("--copy", "shim-figure-1", "mine.toml"), "is there already"),
        (("--copy", "shim-figure-1"), "expected a preset and a file"),
        (("shim-table-3",), "needs text: .*--input text=PATH"),
        (("shim-table-3", "--input", "text"), "expected NAME=PATH"),
        (("shim-figure-1", "--seeds", "one"), "expected whole numbers"),
        (("shim-figure-1", "--scale", "large"), "no scale 'large'"),
        (("nowhere.toml",), "cannot be read"),
    ):
        with pytest.raises(hp.HeadpruneError, match=told):
            invoked("run", *words)


def test_a_chain_of_real_commands_runs_and_its_failures_are_told(tmp_path):
    """Models are handed from step to step; results are numbers over seeds; a failure stops only what needs it."""
    (tmp_path / "text").mkdir()
    for part, count in (("train", 300), ("dev", 30), ("test", 30)):
        (tmp_path / "text" / f"{part}.txt").write_text("the cat sat on the mat. " * count)
    (tmp_path / "chain.toml").write_text(CHAIN)
    given = f"text={tmp_path / 'text'}"
    words = ("run", tmp_path / "chain.toml", "--input", given, "--out", tmp_path / "runs", "--json")
    result = json.loads(invoked(*words).stdout)
    assert (result["done"], result["failed"]) == (6, {})
    bits, heads = result["presets"]["chain"]
    assert len(bits["found"]) == len(heads["found"]) == 2
    assert bits["claim"] is False
    records = [json.loads(path.read_text()) for path in (tmp_path / "runs" / "trials").glob("*.json")]
    assert all(str(tmp_path) not in json.dumps(record["result"]) for record in records)
    broken = CHAIN.replace("binary-concrete", "binary-concret")
    (tmp_path / "broken.toml").write_text(broken)
    done = invoked("run", tmp_path / "broken.toml", *words[2:])
    failed = json.loads(done.stdout)
    assert done.exit_code == 1
    assert (failed["done"], failed["known"], len(failed["failed"])) == (0, 2, 4)
    assert "Did you mean 'binary-concrete'" in next(iter(failed["failed"].values()))


def test_ctrl_c_in_a_command_stops_the_sweep(tmp_path, monkeypatch):
    """It is not a failure of the trial, which goes on when the run is started again."""
    from headprune.jobs import train_lm
    from headprune.lab.experiments.store import Store

    (tmp_path / "text").mkdir()
    for part in ("train", "dev", "test"):
        (tmp_path / "text" / f"{part}.txt").write_text("the cat sat on the mat. " * 40)
    (tmp_path / "chain.toml").write_text(CHAIN)

    def stop(*args, **more):
        raise KeyboardInterrupt

    monkeypatch.setattr(train_lm, "open_out", stop)
    given = ("--input", f"text={tmp_path / 'text'}", "--out", tmp_path / "runs")
    assert invoked("run", tmp_path / "chain.toml", *given).exit_code == 130
    assert len(Store(tmp_path / "runs")) == 0
