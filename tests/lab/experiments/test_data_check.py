"""What is wrong with inputs and what is asked for, told before anything runs."""

from __future__ import annotations

import re

import pytest

import headprune as hp
from headprune.lab.experiments.data_check import check_data
from headprune.lab.experiments.expand import trials_of
from headprune.lab.experiments.library import find_preset
from tests.command import invoked


def trials(name):
    preset = find_preset(name)
    return trials_of(preset, "small", dict.fromkeys(preset.scale("small").inputs, "0" * 16))


@pytest.fixture
def sst2(tmp_path):
    (tmp_path / "sst2").mkdir()
    for part in ("train", "dev"):
        (tmp_path / "sst2" / f"{part}.tsv").write_text("good\t1\nbad\t0\n")
    (tmp_path / "encoder").mkdir()
    return tmp_path


def test_the_right_data_pass(sst2):
    """Every part that a trial names is read."""
    check_data(trials("michel-table-3"), {"sst2": sst2 / "sst2", "encoder": sst2 / "encoder"})


@pytest.mark.parametrize(
    ("preset", "name", "told"),
    [
        ("michel-figure-4", "pairs", r"pairs \(train-mt\)"),  # sentences with labels are no pairs
        ("michel-figure-6", "mrpc", r"mrpc \(mrpc\)"),
        ("shim-table-2", "text", r"text \(stream-lm\)"),
        ("voita-sections-4-5", "trees", r"trees \(trees\)"),
    ],
)
def test_data_of_another_task_are_told_by_the_name_of_the_input(sst2, preset, name, told):
    """All that is wrong at once, and that nothing was run."""
    place = sst2 / "sst2" / "dev.tsv" if name == "trees" else sst2 / "sst2"
    with pytest.raises(hp.HeadpruneError, match="Nothing was run") as caught:
        check_data(trials(preset), {name: place})
    assert re.search(told, str(caught.value))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["michel-table-3", "--seeds", "1,2,1"], "a seed counts once"),
        (["michel-table-3", "--all"], "leave out one of them"),
        (["michel-table-3", "--inputs", "nowhere"], "expected a folder with encoder, sst2"),
        (["michel-table-3", "--threads", "-1", "--dry-run"], "--threads is -1"),
    ],
)
def test_what_cannot_be_run_is_told_first(words, told, tmp_path):
    """Before the folder of results is made."""
    with pytest.raises(hp.HeadpruneError, match=re.escape(told)):
        invoked("run", *words, "--out", str(tmp_path / "runs"))
    assert not (tmp_path / "runs").exists()
