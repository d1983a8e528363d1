"""`headprune export`."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

import headprune as hp
from headprune.cli.app import app
from tests.checkpoint.toy import uniformly_pruned


def test_the_command_exports_a_folder(tmp_path):
    """With what lies beside the model; an unknown format gets a hint."""
    uniformly_pruned("llama").save_pretrained(tmp_path / "pruned")
    (tmp_path / "pruned" / "tokenizer_config.json").write_text("{}")
    words = ["export", str(tmp_path / "pruned"), "--out", str(tmp_path / "plain")]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert "loads without headprune" in done.stdout
    assert (tmp_path / "plain" / "tokenizer_config.json").is_file()
    assert json.loads((tmp_path / "plain" / "config.json").read_text())["num_attention_heads"] == 2
    with pytest.raises(hp.HeadpruneError, match="Did you mean 'plain'"):
        CliRunner().invoke(app, [*words, "--format", "plan"], catch_exceptions=False)
