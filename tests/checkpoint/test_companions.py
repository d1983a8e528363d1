"""What lies in a model folder besides the model."""

from __future__ import annotations

import os
import re

import pytest

from headprune.checkpoint.out_folder import check_companions, copy_companions, new_model_folder
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


def test_a_model_folder_is_made_whole_or_not_at_all(source, tmp_path):
    """The source's card is there while the model is saved; a failure leaves no folder."""
    (source / "README.md").write_text("# Mine")
    out = tmp_path / "target"
    with pytest.raises(OSError, match="full, with # Mine"), new_model_folder(out, source) as new:
        raise OSError(f"full, with {(new / 'README.md').read_text()}")
    assert not out.exists()
    with new_model_folder(out, source) as new:
        (new / "config.json").write_text("{}")
    assert sorted(path.name for path in out.iterdir()) == ["1_Pooling", "README.md", "config.json", "vocab.txt"]


def test_results_of_the_model_before_go_with_it(tmp_path):
    """Files of others stay."""
    for name in ("finetune.json", "prune.json", "notes.txt"):
        (tmp_path / name).write_text("of the old model")
    with new_model_folder(tmp_path) as new:
        (new / "prune.json").write_text("of the new one")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "prune.json": "of the new one", "notes.txt": "of the old model"
    }  # fmt: skip


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
    with pytest.raises(CheckpointError, match=re.escape(name)), new_model_folder(target, source):
        pass
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
