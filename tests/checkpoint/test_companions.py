"""What lies in a model folder besides the model."""

from __future__ import annotations

import os
import re

import pytest

from headprune.checkpoint.companions import (
    RESULT,
    check_companions,
    check_replaceable,
    copy_companions,
    kept_card,
)
from headprune.errors import CheckpointError


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "source"
    for name in ("vocab.txt", "1_Pooling/config.json", "model.safetensors", "finetune.json", ".cache", "code.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return folder


def test_a_tokenizer_comes_along_and_weights_results_and_code_do_not(source, tmp_path):
    """What is in the target already stays as it is."""
    target = tmp_path / "target"
    target.mkdir()
    (target / "vocab.txt").write_text("mine")
    copy_companions(source, target)
    found = {str(path.relative_to(target)) for path in target.rglob("*") if path.is_file()}
    assert found == {"vocab.txt", "1_Pooling/config.json"}
    assert (target / "vocab.txt").read_text() == "mine"


def test_a_target_inside_the_source_is_not_copied_into_itself(source):
    """`--out model/small`."""
    copy_companions(source, source / "small")
    copy_companions(source, source / "small")
    assert not (source / "small" / "small").exists()


def test_the_card_goes_again_if_saving_fails(source, tmp_path):
    """And so does the folder that was made for it."""
    (source / "README.md").write_text("# Mine")
    with pytest.raises(OSError, match="full, with # Mine"), kept_card(source, tmp_path / "target"):
        raise OSError(f"full, with {(tmp_path / 'target' / 'README.md').read_text()}")
    assert not (tmp_path / "target").exists()


def test_only_what_prune_wrote_is_replaced(tmp_path):
    """A model from elsewhere would be lost, as would one that was trained since."""
    check_replaceable(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="holds another model"):
        check_replaceable(tmp_path)
    (tmp_path / RESULT).write_text("{}")
    check_replaceable(tmp_path)
    (tmp_path / "finetune.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"finetune\.json"):
        check_replaceable(tmp_path)


@pytest.mark.parametrize(
    ("name", "make", "why"),
    [
        ("notes.txt", lambda path: path.symlink_to("/etc/hostname"), "a link that leads out of its folder"),
        ("vocab.txt", lambda path: path.symlink_to("/dev/zero"), "a link that leads out of its folder"),
        ("README.md", lambda path: path.symlink_to("/etc/hostname"), "a link that leads out of its folder"),
        ("extra/gone.txt", lambda path: path.symlink_to("/nowhere/at/all"), "a link that leads out of its folder"),
        ("pipe.txt", os.mkfifo, "a device, a pipe or a socket"),
        ("merges.txt", lambda path: path.touch() or os.truncate(path, 1 << 40), "expected at most"),
    ],
)
def test_a_hostile_file_beside_the_weights_is_refused_by_name(tmp_path, name, make, why):
    """Before the work and when it is copied; nothing of what a link leads to arrives."""
    source, target = tmp_path / "model", tmp_path / "small"
    (source / name).parent.mkdir(parents=True)
    make(source / name)
    with pytest.raises(CheckpointError, match=re.escape(name)) as told:
        check_companions(source)
    assert why in str(told.value)
    with pytest.raises(CheckpointError, match=re.escape(name)), kept_card(source, target):
        copy_companions(source, target)
    assert not (target / name).exists()


def test_links_inside_a_folder_and_into_its_hub_cache_are_followed(tmp_path):
    """A snapshot of the hub is made of links to the blobs of the same repository; those of another are outside."""
    repository = tmp_path / "models--a--b"
    blobs, snapshot = repository / "blobs", repository / "snapshots" / "abc"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    (blobs / "1234").write_text("words")
    (snapshot / "vocab.txt").symlink_to("../../blobs/1234")
    (snapshot / "same.txt").symlink_to("vocab.txt")
    check_companions(snapshot)
    copy_companions(snapshot, tmp_path / "small")
    assert [(tmp_path / "small" / name).read_text() for name in ("vocab.txt", "same.txt")] == ["words"] * 2
    assert not (tmp_path / "small" / "vocab.txt").is_symlink()
    other = tmp_path / "models--c--d" / "snapshots" / "abc"
    other.mkdir(parents=True)
    (other / "vocab.txt").symlink_to(blobs / "1234")
    with pytest.raises(CheckpointError, match="a link that leads out"):
        check_companions(other)
