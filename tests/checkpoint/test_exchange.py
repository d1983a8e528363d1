"""A save is the old model or the new one, whatever interrupts it; the next load or save finds what was interrupted."""

from __future__ import annotations

import json
import logging
import os

import pytest
from tools.fuzz.interrupted import KINDS, Case, ctrl_c, fault_at, model_case, restore, state
from transformers import AutoModelForSequenceClassification

import headprune as hp
from headprune import files
from headprune.checkpoint.exchange import JOURNAL, PREFIX, exchange, finish_interrupted
from headprune.errors import CheckpointError


@pytest.fixture
def small_case(tmp_path):
    """Files come, go, replace others and stay; a folder takes the place of one."""
    folder = tmp_path / "out"
    for name in ("config.json", "weights", "stale", "foreign", "part/old"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"old {name}")

    def save():
        with exchange(folder, lambda names: ["stale"]) as new:
            (new / "part").mkdir()
            for name in ("config.json", "weights", "prune.json", "part/new"):
                (new / name).write_text(f"new {name}")

    return Case(folder, save)


@pytest.mark.parametrize("kind", KINDS)
def test_a_save_stopped_at_any_event_leaves_the_old_or_the_new(small_case, kind):
    """Before each event and inside it: the folder is the one or the other to the byte, and nothing is left over."""
    assert len(small_case.events) > 20
    lost = [small_case.lost(event, kind, inside=inside) for event, one, inside in small_case.faults() if one == kind]
    assert not [what for what in lost if what]


def test_a_model_saved_by_a_command_is_exchanged_with_all_that_belongs_to_it(tmp_path):
    """Weights in shards, config, card, tokenizer and prune.json: a sample of the events; the tool takes all."""
    case = model_case(tmp_path)
    assert {"prune.json", "README.md", "vocab.txt", "1_Pooling/config.json", "foreign.txt"} <= case.new.keys()
    faults = case.faults()
    lost = [case.lost(event, kind, inside=inside) for event, kind, inside in faults[:: len(faults) // 24]]
    assert not [what for what in lost if what]


def test_the_next_load_finishes_what_was_interrupted_and_says_so(tmp_path, caplog):
    """Through the Auto class, whose first look is at the config, which is not there in the middle of an exchange."""
    case = model_case(tmp_path)
    moves = [number for number, name in enumerate(case.events) if name == "replace"]
    restore(case.old, case.folder)
    case.kill_at(moves[-2], inside=True)  # some files have come, the config has not
    assert not (case.folder / "config.json").exists()
    with caplog.at_level(logging.WARNING, "headprune"):
        model = AutoModelForSequenceClassification.from_pretrained(case.folder)
    assert "had been interrupted; it is finished now" in caplog.text
    assert state(case.folder) == case.new
    assert len(hp.find_heads(model)) == 6
    assert json.loads((case.folder / "prune.json").read_text()) == {"number": 2}


def test_a_folder_that_somebody_else_saves_into_is_left_alone(tmp_path):
    """A lock, which dies with its process, tells work from litter."""
    with exchange(tmp_path) as new:
        (new / "x").write_text("x")
        finish_interrupted(tmp_path)
        assert (new / "x").is_file()
    assert state(tmp_path) == {"x": b"x"}


@pytest.mark.parametrize(
    "journal",
    [
        {"comes": ["../outside"], "goes": []}, {"comes": [], "goes": ["/etc/passwd"]}, {"comes": [], "goes": [".."]},
        {"comes": "config.json", "goes": []}, {"comes": [], "goes": [1]}, {"comes": ["x"] * 10_001, "goes": []},
    ],
)  # fmt: skip
def test_a_journal_that_leads_elsewhere_is_refused(tmp_path, journal):
    """It may have come with a folder from anywhere: nothing outside is moved or removed."""
    (tmp_path / "outside").write_text("mine")
    work = tmp_path / "model" / f"{PREFIX}x"
    (work / "new").mkdir(parents=True)
    (work / JOURNAL).write_text(json.dumps({"kind": "headprune.exchange", "schema": 1, **journal}))
    with pytest.raises(CheckpointError, match="damaged"):
        finish_interrupted(tmp_path / "model")
    assert (tmp_path / "outside").read_text() == "mine"


def test_links_in_the_place_of_our_folders_are_not_followed(tmp_path):
    """Neither one that looks like the folder of a save, nor one inside it."""
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "letter").write_text("mine")
    model = tmp_path / "model"
    model.mkdir()
    (model / f"{PREFIX}a").symlink_to(mine)
    work = model / f"{PREFIX}b"
    work.mkdir()
    (work / "new").symlink_to(mine)
    content = {"kind": "headprune.exchange", "schema": 1, "comes": ["letter"], "goes": []}
    (work / JOURNAL).write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match="is a link"):
        finish_interrupted(model)
    assert (mine / "letter").read_text() == "mine"


def test_a_model_saved_since_by_something_else_is_not_overwritten(small_case):
    """An exchange that never began to move gives way to a newer config."""
    journal = [number for number, name in enumerate(small_case.events) if name == "fsync"][
        -2
    ]  # the last is the folder's
    restore(small_case.old, small_case.folder)
    small_case.kill_at(journal, inside=True)
    (works,) = small_case.folder.glob(f"{PREFIX}*")
    assert (works / JOURNAL).is_file()
    later = (works / JOURNAL).stat().st_mtime_ns + 10**9
    (small_case.folder / "config.json").write_text("newer")
    os.utime(small_case.folder / "config.json", ns=(later, later))
    finish_interrupted(small_case.folder)
    assert (small_case.folder / "config.json").read_text() == "newer"
    assert (small_case.folder / "weights").read_text() == "old weights"
    assert not list(small_case.folder.glob(f"{PREFIX}*"))


def test_folders_that_were_made_for_a_save_that_failed_go_again(tmp_path):
    """As if nothing had been tried."""
    with pytest.raises(KeyboardInterrupt), exchange(tmp_path / "a" / "b"):
        ctrl_c()
    assert not list(tmp_path.iterdir())


def test_the_harness_sees_a_save_that_loses_something(tmp_path):
    """Moving file by file without a journal, as 0.1.0 did, is found out."""
    (tmp_path / "out").mkdir()
    for name in ("config.json", "weights"):
        (tmp_path / "out" / name).write_text("old")

    def save():
        for name in ("config.json", "weights"):
            (tmp_path / "out" / name).write_text("new")

    case = Case(tmp_path / "out", save)
    assert any(case.lost(event, "kill", inside=inside) for event in range(2) for inside in (False, True))


def test_counting_leaves_the_system_as_it_was():
    """The functions that were watched are Python's own again, also after a fault."""
    before = os.replace
    with pytest.raises(KeyboardInterrupt), fault_at(0, ctrl_c, inside=False):
        os.replace("a", "b")  # noqa: PTH105
    assert os.replace is before


@pytest.mark.parametrize("name", [".git", ".ssh", ".bashrc", ".env"])
def test_a_journal_from_anywhere_touches_no_hidden_file(tmp_path, name):
    """It could remove what lies beside the model, or put there what steers other programs."""
    (tmp_path / name).write_text("mine")
    for comes, goes in (([name], []), ([], [name])):
        work = tmp_path / f"{PREFIX}evil"
        (work / "new").mkdir(parents=True, exist_ok=True)
        (work / "new" / name).write_text("theirs")
        (work / JOURNAL).write_text(files.dump("exchange", {"comes": comes, "goes": goes}))
        with pytest.raises(CheckpointError, match="does not list names of files"):
            finish_interrupted(tmp_path)
    assert (tmp_path / name).read_text() == "mine"


def test_much_litter_is_told_of_once(tmp_path, caplog):
    """A folder with thousands of interrupted saves took seconds of messages."""
    for number in range(50):
        (tmp_path / f"{PREFIX}{number}").mkdir()
    with caplog.at_level(logging.WARNING, "headprune"):
        finish_interrupted(tmp_path)
    assert len(caplog.messages) == 1
    assert not list(tmp_path.iterdir())
