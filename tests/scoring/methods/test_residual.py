"""`residual`."""

from __future__ import annotations

import pytest
import torch

import headprune as hp
from headprune.recovery.sequential import columns_of
from headprune.scoring.methods.residual import Unexplained
from tests.families.tiny import labelled_batches, tiny_model


def test_what_is_left_of_a_head_is_the_residual_of_a_regression(moments):
    """Head by head, as torch's own least squares has it."""
    rows, found = moments
    rest = Unexplained(found, 4, ridge=0.0, centred=True)(rows)
    centred = rows - rows.mean(0)
    for head in range(4):
        own, others = columns_of([head], 3), columns_of([h for h in range(4) if h != head], 3)
        fit = torch.linalg.lstsq(centred[:, others], centred[:, own]).solution
        torch.testing.assert_close(rest[:, own], centred[:, own] - centred[:, others] @ fit)


def test_a_head_that_others_can_replace_has_no_residual():
    """A copy of another head: nothing is lost with either, much with both."""
    model = tiny_model("bert", num_labels=2)
    attention = model.get_submodule(hp.find_heads(model)["encoder.0"].path).self
    with torch.no_grad():
        for projection in (attention.query, attention.key, attention.value):
            projection.weight[8:16] = projection.weight[:8]
            projection.bias[8:16] = projection.bias[:8]
    batches = labelled_batches(model)
    row = hp.score(model, batches, method="residual", ridge=1e-10).scores["encoder.0"]
    assert max(row[:2]) < 1e-3 * min(row[2:])
    added = hp.score(model, batches, method="reconstruction", ridge=1e-10).scores["encoder.0"]
    assert min(added[:2]) < 1e-6 < 1e-3 < max(added[:2])


def test_layers_that_share_a_block_count_together():
    """ALBERT: with nothing explained, the residual is the sensitivity, of all layers and not of the last."""
    model = tiny_model("albert", num_labels=2)
    for site in hp.find_heads(model):
        model.get_submodule(site.output).bias = None
    batches = labelled_batches(model)
    residual, sensitivity = (
        hp.score(model, batches, method=method, **more).scores
        for method, more in (("residual", {"ridge": 1e12}), ("sensitivity", {}))
    )
    for site, row in sensitivity.items():
        assert residual[site] == pytest.approx(row, rel=1e-3)
