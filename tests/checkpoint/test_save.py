"""Saving: whole or not at all, and nothing of others is touched."""

from __future__ import annotations

import copy
import os
import tempfile
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification

import headprune as hp
from headprune.errors import CheckpointError, UnsupportedModelError
from headprune.structure.dummy_inputs import example_inputs
from headprune.structure.run import difference, run
from tests.families.tiny import full_mask, tiny_model

FULL_DISK = """
import resource, signal, sys
import headprune as hp
from transformers import AutoModelForSequenceClassification
model = AutoModelForSequenceClassification.from_pretrained(sys.argv[1])
hp.prune_(model, hp.HeadMask.full(hp.find_heads(model)).without("encoder.1:0"))
heads = hp.find_heads(model)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
try:
    model.save_pretrained(sys.argv[1])
except hp.HeadpruneError as error:
    print("refused", error)
assert hp.find_heads(model) == heads
"""


def answer(model, batch=None):
    with torch.no_grad():
        return run(model.eval(), batch if batch is not None else example_inputs(model))


def snapshot(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_sharded_checkpoints(pruned, tmp_path):
    """Many small files; stale ones of an earlier save disappear."""
    pruned.save_pretrained(tmp_path, max_shard_size="10KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert difference(answer(loaded), answer(pruned)).largest == 0.0
    pruned.save_pretrained(tmp_path)
    assert [p.name for p in tmp_path.glob("*.safetensors")] == ["model.safetensors"]
    assert not (tmp_path / "model.safetensors.index.json").exists()
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert difference(answer(loaded), answer(pruned)).largest == 0.0


def test_other_files_of_the_folder_stay(pruned, folder):
    """A tokenizer saved before is still there."""
    (folder / "vocab.txt").write_text("a b c")
    pruned.save_pretrained(folder)
    assert (folder / "vocab.txt").read_text() == "a b c"
    assert not [p for p in folder.parent.iterdir() if p.name.startswith(".headprune")]


def test_an_unwritable_place_is_told_and_nothing_is_lost(pruned, tmp_path):
    """A file where a folder should be made."""
    (tmp_path / "file").write_text("hello")
    with pytest.raises(CheckpointError, match="could not be saved"):
        pruned.save_pretrained(tmp_path / "file" / "model")
    assert (tmp_path / "file").read_text() == "hello"


def test_a_disk_that_fills_up_in_the_middle_loses_nothing(folder, programs):
    """The old checkpoint is still whole, and no litter is left. (A limit on file size stands in for the disk.)"""
    before = snapshot(folder)
    done = programs.run("-c", FULL_DISK, folder)
    assert "refused The pruned model could not be saved" in done.stdout, done.stderr
    assert snapshot(folder) == before
    assert [p.name for p in folder.parent.iterdir()] == [folder.name]


def test_an_offloaded_model_is_refused(pruned):
    """By its device map."""
    model = copy.deepcopy(pruned)
    model.hf_device_map = {"bert": 0, "classifier": "disk"}
    with pytest.raises(UnsupportedModelError, match="offloaded"):
        hp.prune_(model, hp.HeadMask.full(hp.find_heads(model)).without("encoder.1:0"))


def test_saving_leaves_foreign_files_and_other_variants(tmp_path):
    """Only weight files of the same save are replaced."""
    model = tiny_model("bert")
    hp.prune_(model, full_mask(model).without("encoder.0:1"))
    model.save_pretrained(tmp_path, variant="fp16")
    (tmp_path / "model_ema.safetensors").write_text("mine")
    model.save_pretrained(tmp_path, max_shard_size="10KB")
    model.save_pretrained(tmp_path)
    names = {path.name for path in tmp_path.iterdir() if "safetensors" in path.name}
    assert names == {"model.safetensors", "model.fp16.safetensors", "model_ema.safetensors"}


def test_saving_through_a_link_to_another_disk(tmp_path):
    """The files are first written on the disk where they end up: moving across disks is not possible."""
    memory = Path("/dev/shm")
    if not memory.is_dir() or memory.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no second file system here to link to")
    with tempfile.TemporaryDirectory(dir=memory) as elsewhere:
        (tmp_path / "link").symlink_to(elsewhere)
        model = tiny_model("bert")
        hp.prune_(model, full_mask(model).without("encoder.0:1"))
        model.save_pretrained(tmp_path / "link")
        assert {p.name for p in Path(elsewhere).iterdir()} == {"config.json", "model.safetensors", "README.md"}
    assert {p.name for p in tmp_path.iterdir()} == {"link"}


def test_a_file_in_the_place_of_the_folder_is_told(tmp_path):
    """transformers would log a line and go on."""
    model = tiny_model("bert")
    hp.prune_(model, full_mask(model).without("encoder.0:1"))
    (tmp_path / "file").write_text("x")
    with pytest.raises(CheckpointError, match="is a file"):
        model.save_pretrained(tmp_path / "file")


def _link_out(card):
    (card.parent.parent / "secret").write_text("secret")
    card.unlink()
    card.symlink_to(card.parent.parent / "secret")


def _too_large(card):
    with card.open("wb") as file:
        file.truncate(1 << 32)


def _pipe(card):
    card.unlink()
    os.mkfifo(card)


@pytest.mark.parametrize("change", [_link_out, _too_large, _pipe])
def test_a_card_that_is_no_file_of_the_folder_is_not_copied(change, pruned, folder):
    """The folder may have come from anywhere; the model that is in it stays."""
    change(folder / "README.md")
    before = (folder / "model.safetensors").stat().st_ino
    with pytest.raises(CheckpointError, match=r"README\.md"):
        pruned.save_pretrained(folder)
    assert (folder / "model.safetensors").stat().st_ino == before
