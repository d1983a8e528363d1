"""Speed-ups are measured on this machine."""

from __future__ import annotations

import pytest
import torch

import headprune as hp
from headprune.budgets import Selection
from headprune.budgets.budget import Costs
from headprune.budgets.kinds.speedup import SpeedupMask, mask_for_speedup
from headprune.errors import MaskError
from tests.budgets.toy import random_scores
from tests.families.tiny import tiny_model


def selected(model, **how):
    heads = hp.find_heads(model)
    return Selection(scores=random_scores(heads), heads=heads, model=model, **how)


def test_a_speed_up_is_measured_not_believed():
    """On a model with enough attention for time to show; what the search says is what it measured last."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    model = BertModel(
        BertConfig(vocab_size=50, hidden_size=256, num_hidden_layers=2, num_attention_heads=8, intermediate_size=64)
    ).eval()
    heads, threads = hp.find_heads(model), torch.get_num_threads()
    torch.set_num_threads(1)  # threads that wait for one another on a busy machine would be all that is measured
    try:
        hit = mask_for_speedup(selected(model, batch=2, length=256), 1.5, repeats=3, tries=2)
    finally:
        torch.set_num_threads(threads)
    assert len(hit.mask) < len(heads)
    assert hit.spread[0] <= hit.speedup <= hit.spread[1]
    assert hit.speedup > 1.1


@pytest.mark.parametrize("smallest", [1.02, 2.0])
def test_a_table_that_says_it_cannot_be_done_is_not_believed(monkeypatch, smallest):
    """Times of a few passes may be wrong: the smallest model is measured, and only that can refuse."""
    model = tiny_model("bert")
    heads = hp.find_heads(model)
    wrong = Costs("seconds", 1.0, {site.id: (0.0,) * (site.num_heads + 1) for site in heads})

    def measured(model, mask, *_):
        return SpeedupMask(mask, 1 / (1 - (1 - 1 / smallest) * (1 - len(mask) / len(heads))), (1.0, 2.0), (1.0, 1.0))

    monkeypatch.setattr("headprune.budgets.budget.site_costs", lambda *_, **__: wrong)
    monkeypatch.setattr("headprune.budgets.kinds.speedup._measured", measured)
    if smallest < 1.25:
        with pytest.raises(MaskError, match=r"measured to be 1\.02 times"):
            mask_for_speedup(selected(model), 1.25)
    else:
        hit = mask_for_speedup(selected(model), 1.25)
        assert 0 < len(hit.mask) < len(heads)
        assert hit.speedup == pytest.approx(1.25, rel=0.1)


def test_speed_ups_that_mean_nothing_are_refused():
    """Before anything is timed; unequal sites once got a mask without heads."""
    model = tiny_model("bert")
    with pytest.raises(MaskError, match="more than 1"):
        mask_for_speedup(selected(model), 0.9)
    hp.prune_(model, hp.HeadMask.full(hp.find_heads(model)).without("encoder.0:1"))
    with pytest.raises(MaskError, match=r"encoder\.0 has 3, encoder\.1 4"):
        mask_for_speedup(selected(model, uniform=True), 1.001, repeats=3)
