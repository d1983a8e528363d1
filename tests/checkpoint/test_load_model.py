"""The one way in which headprune loads a model by its name."""

from __future__ import annotations

import logging

import pytest
import transformers

from headprune.checkpoint.load_model import load_model, quiet_transformers
from headprune.checkpoint.out_folder import check_writable
from headprune.errors import CheckpointError
from tests.families.tiny import tiny_model
from tests.lab.models.toy import tiny


def test_a_model_of_our_own_is_loaded_in_its_own_class(tmp_path):
    """Also by the measurements of experiments, which took the part without its head before."""
    tiny().save_pretrained(tmp_path)
    assert type(load_model(str(tmp_path), "cpu")).__name__ == "AllAttentionForCausalLM"


def test_what_cannot_be_loaded_is_told_with_a_near_name(tmp_path):
    """And a run that was not finished is told from a folder that is none."""
    tiny_model("bert").save_pretrained(tmp_path / "classifier")
    with pytest.raises(CheckpointError, match=r"did you mean .*classifier"):
        load_model(str(tmp_path / "clasifier"), "cpu")
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    with pytest.raises(CheckpointError, match="not finished"):
        load_model(str(tmp_path / "run"), "cpu")


def test_who_looks_for_a_fault_hears_transformers(monkeypatch, caplog):
    """Its reports are silenced otherwise."""
    calls: list[str] = []
    monkeypatch.setattr(transformers.logging, "set_verbosity_error", lambda: calls.append("quiet"))
    with caplog.at_level(logging.DEBUG, logger="headprune"):
        quiet_transformers()
    assert calls == []
    quiet_transformers()
    assert calls == ["quiet"]


def test_a_folder_that_cannot_be_written_is_told_before_the_work(tmp_path):
    """Nor may a model be replaced by what is made of it."""
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot be written"):
        check_writable(tmp_path / "file" / "out")
    with pytest.raises(CheckpointError, match="is the model itself"):
        check_writable(tmp_path, str(tmp_path))
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    for odd in (tmp_path / "circle", tmp_path / ("x" * 5000)):
        with pytest.raises(CheckpointError, match="cannot be written"):
            check_writable(odd, str(tmp_path))
    assert check_writable(tmp_path / "new" / "deep") == tmp_path / "new" / "deep"


def test_a_file_that_no_model_has_is_refused_before_it_is_read(tmp_path):
    """A config without end would be read into memory."""
    tiny_model("bert").save_pretrained(tmp_path)
    with (tmp_path / "config.json").open("ab") as file:
        file.truncate(1 << 33)
    with pytest.raises(CheckpointError, match=r"config\.json' has 8589934592 bytes"):
        load_model(str(tmp_path), "cpu")
