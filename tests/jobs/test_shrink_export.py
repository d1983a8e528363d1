"""`headprune shrink … --export`: from a checkpoint to the file that another runtime reads."""

from __future__ import annotations

import json

import pytest
from gguf import GGUFReader
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

import headprune as hp
from headprune.checkpoint.exports.gguf.comparison import TEXT
from headprune.cli.app import app
from headprune.errors import HeadpruneError
from tests.checkpoint.exports.gguf.llms import tiny_llm


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    root = tmp_path_factory.mktemp("shrink")
    tiny_llm("llama", root / "model")
    (root / "corpus.txt").write_text(TEXT * 40)
    return ["shrink", root / "model", "--corpus", root / "corpus.txt", "--macs", "70%", "--calibration", 32,
            "--max-length", 16, "--batch-size", 8, "--length", 16]  # fmt: skip


def told(*words):
    return CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False).stdout


def test_one_line_from_a_checkpoint_to_a_file_for_llama_cpp(words, tmp_path):
    """--out is the file, and nothing else is left; --keep keeps the checkpoint, too."""
    said = told(*words, "--export", "gguf:q8_0", "--out", tmp_path / "small.gguf")
    assert "log-probabilities within" in said
    assert [path.name for path in tmp_path.iterdir()] == ["small.gguf"]
    found = told(*words, "--export", "gguf:q8_0", "--out", tmp_path / "b.gguf", "--keep", tmp_path / "kept", "--json")
    assert json.loads(found[found.index("{") :])["export"]["checks"]["gap"] < 1e-3
    kept = AutoModelForCausalLM.from_pretrained(tmp_path / "kept")
    widths = [len(layer.mlp.gate_proj.weight) if hasattr(layer.mlp, "gate_proj") else 0 for layer in kept.model.layers]
    counts = GGUFReader(tmp_path / "b.gguf").fields["deci.feed_forward_length"].contents()
    assert counts == [-(-width // 32) * 32 or 32 for width in widths]
    assert len(hp.find_heads(kept, neurons=True)) < 4 * (4 + 48)


def test_other_formats_are_folders(words, tmp_path):
    """With what lies beside the model."""
    told(*words, "--export", "standalone", "--out", tmp_path / "alone")
    assert (tmp_path / "alone" / "modeling_pruned.py").is_file()
    assert (tmp_path / "alone" / "tokenizer.json").is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["alone"]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--export", "ggfu"], "Did you mean 'gguf'"),
        (["--export", "plain:int8"], "plain has no weights of the kind 'int8'"),
        (["--export", "gguf", "--dry-run"], "--out"),
        (["--keep", "folder"], "--keep is for --export"),
        (["--export", "gguf", "--macs", "70%,50%"], "one budget"),
    ],
)
def test_what_does_not_go_together_is_told_before_the_work(more, says, words, tmp_path):
    """And nothing is written."""
    with pytest.raises(HeadpruneError, match=says):
        told(*words, "--out", tmp_path / "a.gguf", *more)
    (tmp_path / "b.gguf").write_text("mine")
    with pytest.raises(HeadpruneError, match="exists"):
        told(*words, "--export", "gguf", "--out", tmp_path / "b.gguf")
    assert [path.name for path in tmp_path.iterdir()] == ["b.gguf"]
