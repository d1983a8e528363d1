"""What the README says is true: every code block is run, every bold figure is one that was measured."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys

import pytest

from tests.places import ROOT

TEXT = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", TEXT, re.DOTALL)
DEMO = json.loads((ROOT / "docs" / "assets" / "demo.json").read_text())["demo"]
COMMANDS = [
    line.removeprefix("$ ").split("  #")[0].strip()
    for language, text in BLOCKS
    if language == "console"
    for line in text.splitlines()
    if line.startswith("$ ")
]


def test_all_blocks_are_of_a_kind_that_is_run():
    """A new kind of block needs a test first; text is what the Python prints."""
    assert [language for language, _ in BLOCKS] == ["console", "python", "text", "console"]


def test_it_is_short():
    """A page: about 700 words of prose, code and tables aside."""
    prose = re.sub(r"```.*?```|^\|.*$|\]\([^)]*\)", "", TEXT, flags=re.DOTALL | re.M)
    assert len(prose.split()) <= 750


@pytest.mark.long
def test_the_python_runs_and_prints_what_stands_below_it(demonstrated, tmp_path):
    """On the demo's model with few reviews, in a fresh process: the same lines, other numbers."""
    (code,) = [text for language, text in BLOCKS if language == "python"]
    (printed,) = [text for language, text in BLOCKS if language == "text"]
    shutil.copytree(demonstrated / "demo-out", tmp_path / "demo-out")
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == [line.split()[0] for line in printed.splitlines()]
    assert (tmp_path / "small" / "config.json").is_file()


def test_the_bold_figures_are_the_stored_ones():
    """Of the demo with seed 0, which docs/assets/demo.json holds."""
    (before, after), (macs, fewer) = DEMO["accuracy"], DEMO["macs"]
    low, high = DEMO["change"]
    bold = f"**{1 - fewer / macs:.0%} fewer multiply-adds · {DEMO['speedup']:.2f} times as fast · "
    bold += f"{100 * (before - after):.1f} points of accuracy**"
    words = " ".join(TEXT.split())
    assert bold.replace("67%", "67 %") in words
    assert f"Accuracy {100 * before:.1f} % → {100 * after:.1f} % on {DEMO['dev']} reviews" in words
    assert f"({'95 %'} interval of the change: {100 * low:+.1f} to {100 * high:+.1f} points)" in words
    assert f"against itself: {DEMO['control']:.2f} times" in words


def test_the_pictures_are_made_of_stored_figures():
    """`make docs` writes them again, the same."""
    import importlib.util

    spec = importlib.util.spec_from_file_location("pictures_build", ROOT / "docs" / "pictures_build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for path, text in module.pictures().items():
        assert path.read_text() == text, path


def test_every_link_leads_somewhere():
    """To a file of the repository."""
    for target in re.findall(r"\]\((?!https?:)([^)#\s]+)", TEXT):
        assert (ROOT / target).is_file(), target


def test_the_command_that_shrinks_runs(tmp_path, programs):
    """With a toy model and a table of somebody's own in the places of the paths."""
    from tests.docs.test_guides import write_reviews
    from tests.tasks.toy import write_model

    (command,) = [one for one in COMMANDS if one.startswith("headprune")]
    places = {"path/to/model": write_model(tmp_path / "model"), "path/to/reviews": write_reviews(tmp_path)}
    words = [str(places.get(word, word)) for word in shlex.split(command)]
    done = programs.run("-m", *[word.replace("33%", "60%") for word in words], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "small" / "config.json").exists()


def test_the_program_starts_from_nothing(tmp_path):
    """A fresh process, where nothing is imported before."""
    done = subprocess.run([sys.executable, "-m", "headprune", "doctor"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "headprune" in done.stdout


def test_the_other_commands_install_and_demonstrate():
    """`make -n` knows how to build them."""
    assert [one for one in COMMANDS if not one.startswith("headprune")] == ["pip install .", "make demo"]
    done = subprocess.run(["make", "demo", "-n"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_formats_in_the_readme_are_there():
    """Each that `export --format` takes, and no other."""
    from headprune.checkpoint.exports import exports

    named = set(re.findall(r"--format (\w+)`", TEXT))
    assert named == set(exports)


def test_the_families_in_the_readme_are_those_that_are_tested():
    """The table is the test's list; the counts are those of families.json."""
    from tests.families.tiny import FAMILIES

    listed = [
        name.strip()
        for row in re.findall(r"^\| (?:enc|dec|vis)[^|]*\|([^|]*)\|$", TEXT, re.M)
        for name in row.replace("(our own)", "").split(",")
    ]
    assert sorted(listed) == sorted(FAMILIES)
    assert f"These {len(FAMILIES)} families" in TEXT
    found = json.loads((ROOT / "docs" / "families.json").read_text())
    states = [one["status"] for one in found["types"].values()]
    exact, built = states.count("pass") + states.count("core"), len(states) - states.count("unbuilt")
    words = " ".join(TEXT.split())
    assert f"Of the {len(states)} model types of transformers {found['transformers']}, {built} could be built" in words
    assert f"and {exact} are pruned exactly and reload" in words


def test_the_first_screen_has_picture_figures_and_install():
    """Before the first heading but one: what it is, the picture, three figures."""
    first = TEXT.split("## ")[0]
    assert "before-after.svg" in first
    assert first.count("**") == 4
