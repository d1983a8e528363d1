"""The studies in docs/results, at their smallest."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.places import ROOT
from tests.tasks.parallel import pairs, write_pairs


def page_of(run):
    """What the page says about one run."""
    sys.path.insert(0, str(ROOT / "docs" / "results"))
    try:
        from allattention_page import allattention_page
        from collect import gathered_allattention

        return allattention_page({1: gathered_allattention(run)}, "script")
    finally:
        sys.path.pop(0)


@pytest.mark.long
def test_the_study_runs_from_raw_text_and_resumes(text_folder, tmp_path, programs):
    """docs/results/allattention.sh at its smallest, then its page; started again, nothing is done twice."""
    small = {
        "PRESET": "tiny", "SEGMENT": "16", "STREAMS": "8", "BASE": "20", "PRUNE": "10", "WIDTHS": "32:32 16:16",
        "LAMBDAS": "0.01 0.02", "BY": "letters", "GATE_LR": "0.5", "PRECISION": "--no-bf16",
    }  # fmt: skip
    environment = programs.environment(**small)
    command = ["bash", str(ROOT / "docs" / "results" / "allattention.sh"), str(text_folder), "runs/books-1"]

    def run():
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        lines = (tmp_path / "runs" / "books-1" / "seconds.jsonl").read_text().splitlines()
        return [json.loads(line)["step"] for line in lines]

    steps = run()
    assert len(steps) == len(set(steps)) == 1 + 3 + 5 + 2
    (tmp_path / "runs" / "books-1" / "none" / "gates.json").unlink()
    assert run()[len(steps) :] == ["none/gates.json"]
    page = page_of(tmp_path / "runs" / "books-1")
    for title in ("Tables 1 and 2", "Table 3", "never frozen", "Figure 3", "Figure 1", "What appears at this scale"):
        assert title in page
    assert "no claim" in page


@pytest.mark.long
def test_the_study_runs_from_raw_files_and_resumes(tmp_path, programs):
    """docs/results/translation.sh on a toy language; started again, nothing is done twice."""
    write_pairs(tmp_path / "data", train=200, dev=20, test=20)
    rows = pairs(10, 9)
    for side, ending in enumerate(("en", "de")):
        (tmp_path / "data" / f"help.{ending}").write_text("".join(row[side] + "\n" for row in rows))
    small = {
        "PRESET": "tiny", "TEST": "test", "EPOCHS": "1 10", "SHARES": "50%", "SEEDS": "1", "RANDOM_CUTS": "4/4/4",
        "LAYER_CUTS": "ES=31,ED=13,DS=31", "COMPONENT_CUTS": "ES=2,ED=5,DS=5", "SOME": "10", "STEPS": "2",
        "TUNE_EPOCHS": "1", "GATE_EPOCHS": "1", "LR": "1e-3", "BATCH_TOKENS": "400", "PRECISION": "--no-bf16",
    }  # fmt: skip
    environment = programs.environment(**small)
    command = ["bash", str(ROOT / "docs" / "results" / "translation.sh"), "data", "out"]

    def run():
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]

    run()
    steps = [json.loads(line)["step"] for line in (tmp_path / "out" / "seconds.jsonl").read_text().splitlines()]
    for step in steps:
        assert (tmp_path / "out" / step).is_file(), step
    assert len(steps) == len(set(steps)) == 17
    assert json.loads((tmp_path / "out" / "ablation" / "ablation.json").read_text())["against"]["split"] == "help"
    (tmp_path / "out" / "triples" / "ES=2,ED=5,DS=5" / "finetune.json").unlink()
    run()
    again = [json.loads(line)["step"] for line in (tmp_path / "out" / "seconds.jsonl").read_text().splitlines()]
    assert again[len(steps) :] == ["triples/ES=2,ED=5,DS=5/finetune.json"]
