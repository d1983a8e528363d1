"""`prune --stream` and `shrink --stream`."""

from __future__ import annotations

import json

import pytest
from transformers import AutoModelForCausalLM

import headprune as hp
from headprune.errors import HeadpruneError
from headprune.jobs.options.base import TaskOptions
from headprune.jobs.options.prune import Choice, PruneOptions
from headprune.jobs.options.shrink import ShrinkOptions
from headprune.jobs.prune import prune
from headprune.jobs.shrink import shrink
from tests.docs.test_guides import write_llm


@pytest.fixture
def folder(tmp_path):
    """A small language model with a tokenizer, and text beside it."""
    write_llm(tmp_path)
    return tmp_path / "llm"


def test_a_mask_file_is_applied_on_disk(folder, tmp_path):
    """And the result says what went."""
    heads = hp.stream(folder).heads.attention
    mask = hp.HeadMask.random(heads, keep=0.5, seed=0, unit="group")
    (tmp_path / "mask.json").write_text(mask.to_json())
    done = prune(
        PruneOptions(model=str(folder), choice=Choice(mask=tmp_path / "mask.json"), out=tmp_path / "small", stream=True)
    )
    small = AutoModelForCausalLM.from_pretrained(tmp_path / "small")
    assert hp.HeadMask.full(hp.find_heads(small)) == mask
    assert "from disk to disk by the mask file mask.json" in done.message()
    assert json.loads((tmp_path / "small" / "prune.json").read_text())["heads"] == [len(heads), len(mask)]


@pytest.mark.parametrize("budget", [{"macs": "70%"}, {"params": "80%"}, {"prune": "50%"}])
def test_a_budget_is_met_on_disk(folder, tmp_path, budget):
    """By reconstruction, and repaired; counted as in memory."""
    whole = AutoModelForCausalLM.from_pretrained(folder).eval()
    done = shrink(
        ShrinkOptions(
            model=str(folder), corpus=[tmp_path / "text"], out=tmp_path / "small", calibration=32, length=8,
            data=TaskOptions(task=None, max_length=8, batch_size=8), stream=True, **budget,
        )
    )  # fmt: skip
    small = AutoModelForCausalLM.from_pretrained(tmp_path / "small").eval()
    before, after = (hp.measure(model, length=8, repeats=0) for model in (whole, small))
    if "macs" in budget:
        assert 0.5 < after.macs.total / before.macs.total < 0.71
    if "params" in budget:
        assert 0.6 < after.parameters.total / before.parameters.total < 0.81
    assert "reconstruction in place of best" in done.message()


def test_what_is_not_streamed_is_refused(folder, tmp_path):
    """A budget that is measured, several models, a dry run."""
    with pytest.raises(HeadpruneError, match="one model"):
        shrink(ShrinkOptions(model=str(folder), corpus=[folder], macs="60%,40%", out=tmp_path / "a", stream=True))
    with pytest.raises(HeadpruneError, match="shrink --stream"):
        prune(PruneOptions(model=str(folder), choice=Choice(prune="50%"), dry_run=True, stream=True))
