"""A repair layer by layer gives the weights of a repair in the whole model."""

from __future__ import annotations

import pytest
import torch

import headprune as hp
from headprune.hooks import NotAStackError
from headprune.recovery import walks
from headprune.scoring.layerwise import LayerStates
from tests.families.tiny import tiny_model
from tests.recovery.test_recover import batches_for, job_of

STACKS = (
    "llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text", "gpt_neox", "phi3", "mixtral", "gpt2", "opt", "bert",
)  # fmt: skip


def repaired(family, method, monkeypatch=None):
    model = tiny_model(family)
    heads = hp.find_heads(model, neurons=True)
    kept = {site.id: [h for group in site.groups[::2] for h in group] for site in heads}
    if monkeypatch is not None:

        def refuse(*_):
            raise NotAStackError("on purpose")

        monkeypatch.setattr(walks.LayerStates, "before_first", refuse)
    hp.recover_(model, hp.HeadMask.from_dict(heads, kept), batches_for(model), heads=heads, method=method)
    return model.state_dict()


@pytest.mark.parametrize("method", ["least-squares", "stream"])
@pytest.mark.parametrize("family", STACKS)
def test_layer_by_layer_equals_the_whole(family, method, monkeypatch):
    """Heads and neurons, with padding in the batches."""
    by_layer = repaired(family, method)
    whole = repaired(family, method, monkeypatch)
    for name, value in whole.items():
        torch.testing.assert_close(by_layer[name], value, rtol=1e-4, atol=1e-5 * float(value.abs().max()))


@pytest.mark.parametrize("family", STACKS)
def test_these_families_are_stacks(family):
    """What is made layer by layer is what a pass makes."""
    model = tiny_model(family)
    job = job_of(model, batches_for(model))
    LayerStates.before_first(job, list(job.batches)).check()


@pytest.mark.parametrize("family", ["t5", "bart", "albert", "clip"])
def test_other_models_are_no_stacks(family):
    """Two stacks, or one layer for all."""
    model = tiny_model(family)
    with pytest.raises(NotAStackError):
        LayerStates.before_first(job_of(model, batches_for(model)), batches_for(model))
