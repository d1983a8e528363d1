"""`headprune verify`, and where its old uses went."""

from __future__ import annotations

import json

import pytest

from headprune.errors import CheckpointError, HeadpruneError
from headprune.model_checks import checks
from tests.command import answered, call


def test_a_model_goes_through_every_check(models, tmp_path):
    """A folder: each check is told, as text, as JSON and in a file."""
    told = answered("verify", models / "bert", "--out", tmp_path)
    assert (told["status"], told["sites"], told["class"]) == ("pass", {"encoder": 2}, "BertForSequenceClassification")
    assert list(told["checks"]) == list(checks)
    assert set(told["checks"].values()) == {"pass", "na"}
    assert json.loads((tmp_path / "verdict.json").read_text()) == told
    lines = call("verify", models / "llama").splitlines()
    assert [line.split("  ")[0] for line in lines[:-1]] == list(checks)
    assert lines[-1].endswith("LlamaForCausalLM: every check that applies passes")


def test_a_model_that_cannot_be_pruned_exactly_is_told_so(tmp_path):
    """OLMo2 normalises its heads together."""
    from tools.families.build_model import build

    build("olmo2").model.save_pretrained(tmp_path)
    last = call("verify", tmp_path).splitlines()[-1]
    assert "it cannot be pruned exactly" in last
    assert "normalises the heads together" in last


@pytest.mark.parametrize("words", [["bert"], ["bert", "llama"], ["--all"], ["--all", "--workers", 2, "--limit", 9]])
def test_types_are_verified_by_our_own_tool(words):
    """What 0.1.0 did with a name of a type, with several, and with --all is in the repository now."""
    with pytest.raises(HeadpruneError, match=r"`python -m tools\.families (bert|bert llama|--all)`"):
        call("verify", *words)


def test_neither_a_model_nor_a_type_is_told_as_ever(tmp_path):
    """A folder that is not there, and no name at all."""
    with pytest.raises(CheckpointError, match="no such folder"):
        call("verify", tmp_path / "nowhere")
    with pytest.raises(HeadpruneError, match="Name a model"):
        call("verify")


def test_the_leaderboard_is_computed_by_our_own_tool():
    """`headprune bench` names it, whatever options it is given, and is not listed."""
    with pytest.raises(HeadpruneError, match=r"python -m benchmarks\.leaderboard"):
        call("bench", "leaderboard", "--model", "minilm/sst2=x", "--page", "y")
    assert "bench" not in call("--help")
