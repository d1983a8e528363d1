"""`ablation` and `all-but-one`."""

from __future__ import annotations

import pytest
import torch

import headprune as hp
from tests.families.tiny import labelled_batch, tiny_model
from tests.scoring.toy import labelled, singles


def test_ablation_is_the_rise_of_the_loss():
    """Masked minus base for a loss; all-but-one is base minus masked: larger is better in both."""
    model = tiny_model("bert")
    batch = labelled(model, "bert")
    heads = hp.find_heads(model)

    def loss(mask):
        with torch.no_grad(), hp.masked(model, mask):
            return float(model(**batch).loss)

    full = hp.HeadMask.full(heads)
    scores = hp.score(model, [batch], method="ablation")
    assert scores["encoder.1:2"] == pytest.approx(loss(full.without("encoder.1:2")) - loss(full), abs=1e-6)
    alone = hp.score(model, [batch], method="all-but-one")
    only = full.without("encoder.1:0", "encoder.1:1", "encoder.1:3")
    assert alone["encoder.1:2"] == pytest.approx(loss(full) - loss(only), abs=1e-6)


def test_groups_are_ablated_together():
    """A group's score is what the loss does without the group (or with it alone), one pass for each group."""
    model = tiny_model("llama")
    batch = singles(labelled(model, "llama"))[0]  # of several, the model's own loss weighs long examples more
    heads = hp.find_heads(model)
    full, groups = hp.HeadMask.full(heads), heads["decoder.1"].groups
    assert max(map(len, groups)) > 1

    def loss(mask):
        with torch.no_grad(), hp.masked(model, mask):
            return float(model(**batch).loss)

    first, rest = ([f"decoder.1:{h}" for h in part] for part in (groups[0], sum(groups[1:], ())))
    passes = []
    handle = model.lm_head.register_forward_hook(lambda *_: passes.append(1))
    for method, expected in (
        ("ablation", loss(full.without(*first)) - loss(full)),
        ("all-but-one", loss(full) - loss(full.without(*rest))),
    ):
        passes.clear()
        scores = hp.score(model, [batch], method=method, unit="group", heads=heads)
        taken = len(passes)
        assert sum(scores[head] for head in first) == pytest.approx(expected, abs=1e-6)
        assert len({scores[head] for head in first}) == 1
        passes.clear()
        hp.score(model, [batch], method=method, heads=heads)
        assert len(passes) - taken == len(heads) - sum(len(site.groups) for site in heads)
    handle.remove()


def test_ablations_of_batches_of_any_length_add_up():
    """How much was reused differs from batch to batch, and is no option."""
    model = tiny_model("bert")
    parts = [hp.score(model, [labelled_batch(model, length=length)], method="ablation") for length in (7, 20)]
    merged = parts[0] + parts[1]
    shares = [scores.options["share_reused"] for scores in parts]
    assert shares[0] != shares[1]
    assert merged.options["share_reused"] == pytest.approx(sum(shares) / 2, abs=1e-4)
