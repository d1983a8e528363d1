"""What the README says is true: every code block is run."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys

import pytest

from tests.places import ROOT

BLOCKS = re.findall(r"```(\w*)\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def test_all_blocks_are_of_a_kind_that_is_run():
    """A new kind of block needs a test first."""
    assert {language for language, _ in BLOCKS} == {"python", "console"}


@pytest.mark.long
def test_the_python_blocks_run_one_after_the_other(tmp_path):
    """In one fresh process, as a reader would type them."""
    code = "\n".join(text for language, text in BLOCKS if language == "python")
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "36 heads left" in done.stdout


COMMANDS = [
    line.removeprefix("$ ").split("  #")[0].strip()
    for language, text in BLOCKS
    if language == "console"
    for line in text.splitlines()
    if line.startswith("$ ")
]


def run_command(command, folder, places, programs):
    words = [str(places.get(word, word)) for word in shlex.split(command)]
    done = programs.run("-m", *words, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


OURS = [c for c in COMMANDS if c.startswith("headprune")]
CHAIN = [c for c in OURS if "tuned" in c]
TRANSLATION = [c for c in OURS if "translator" in c]
LANGUAGE = [c for c in OURS if "writer" in c]
PRESETS = [c for c in OURS if c.startswith(("headprune run", "headprune report"))]
DEMO = "headprune demo"
SHRINK = [c for c in OURS if c.startswith("headprune shrink")]
ALONE = [c for c in OURS if c not in (*CHAIN, *TRANSLATION, *LANGUAGE, *PRESETS, *SHRINK, DEMO)]


def test_the_program_starts_from_nothing(tmp_path):
    """A fresh process, where nothing is imported before."""
    done = subprocess.run([sys.executable, "-m", "headprune", "doctor"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "headprune" in done.stdout


@pytest.mark.parametrize("command", ALONE)
def test_the_headprune_commands_run(command, tmp_path, minilm, programs):
    """With a real model in the place of `path/to/model`, and a tree or two."""
    trees = tmp_path / "trees.conllu"
    trees.write_text("1\tgood\tgood\tADJ\tJJ\t_\t2\tamod\t_\t_\n2\tfilm\tfilm\tNOUN\tNN\t_\t0\troot\t_\t_\n")
    assert run_command(command, tmp_path, {"path/to/model": minilm, "path/to/trees.conllu": trees}, programs)


def test_the_demo_runs(demonstrated):
    """On fewer reviews."""
    assert DEMO in OURS
    assert (demonstrated / "told.txt").read_text().strip()


def test_the_commands_that_shrink_run(tmp_path, programs):
    """With a toy model, a table of somebody's own and a folder of text in the places of the paths."""
    from tests.docs.test_guides import write_llm, write_reviews
    from tests.tasks.toy import write_model

    places = {"path/to/model": write_model(tmp_path / "model"), "path/to/reviews": write_reviews(tmp_path)}
    assert len(SHRINK) == 2
    for command in SHRINK:
        assert run_command(
            command, tmp_path, {**places, **(write_llm(tmp_path) if "corpus" in command else {})}, programs
        )
    assert (tmp_path / "small" / "config.json").exists()


@pytest.mark.long
def test_the_commands_for_a_task_run_one_after_the_other(tmp_path, programs):
    """With a toy model and toy data in the places of the paths."""
    from tests.tasks.toy import write_data, write_model

    places = {"path/to/model": write_model(tmp_path / "model"), "path/to/data": write_data(tmp_path / "data", 60, 40)}
    assert len(CHAIN) == 10
    for command in CHAIN:
        assert run_command(command, tmp_path, places, programs)
    assert (tmp_path / "small" / "config.json").exists()


@pytest.mark.long
def test_the_commands_for_translation_run_one_after_the_other(tmp_path, programs):
    """With a toy language in the place of the pairs."""
    from tests.tasks.parallel import write_pairs

    places = {"path/to/pairs": write_pairs(tmp_path / "pairs", train=80, dev=8, test=8)}
    assert len(TRANSLATION) == 6
    for command in TRANSLATION:
        assert run_command(command, tmp_path, places, programs)
    assert (tmp_path / "scored" / "translations.txt").exists()


def test_the_commands_for_language_models_run_one_after_the_other(tmp_path, programs):
    """With a toy text in the place of the path."""
    (tmp_path / "text").mkdir()
    for part, count in (("train", 900), ("dev", 60), ("test", 60)):
        (tmp_path / "text" / f"{part}.txt").write_text("the cat sat on the mat. " * count)
    assert len(LANGUAGE) == 3
    for command in LANGUAGE:
        assert run_command(command, tmp_path, {"path/to/text": tmp_path / "text"}, programs)
    assert (tmp_path / "writer-gated" / "gates.json").exists()


def test_the_commands_for_the_papers_run_one_after_the_other(tmp_path, programs):
    """Two presets by arithmetic, and their report."""
    assert len(PRESETS) == 3
    for command in PRESETS:
        assert run_command(command, tmp_path, {}, programs)
    assert "Shim et al. 2021, Figure 1" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("make")])
def test_the_make_targets_exist(command):
    """`make -n` knows how to build them."""
    done = subprocess.run([*shlex.split(command), "-n"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_nothing_else_is_promised():
    """The remaining commands install the package."""
    rest = [c for c in COMMANDS if not c.startswith(("headprune", "make"))]
    assert rest == ["pip install ."]


def test_the_families_in_the_readme_are_those_that_are_tested():
    """The table is the test's list."""
    from tests.families.tiny import FAMILIES

    text = (ROOT / "README.md").read_text()
    listed = [
        name.strip()
        for row in re.findall(r"^\| (?:enc|dec|vis)[^|]*\|([^|]*)\|$", text, re.M)
        for name in row.replace("(our own)", "").split(",")
    ]
    assert sorted(listed) == sorted(FAMILIES)
    assert f"These {len(FAMILIES)} families" in text
