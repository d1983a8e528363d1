"""`output-norm`."""

from __future__ import annotations

import pytest
import torch

import headprune as hp
from tests.families.tiny import tiny_model
from tests.scoring.toy import labelled


def test_output_norm_by_hand():
    """The length of the head's slice through its columns, averaged over real positions."""
    model = tiny_model("bert")
    batch = labelled(model, "bert")
    site = hp.find_heads(model)["encoder.0"]
    dense, seen = model.get_submodule(site.output), []
    handle = dense.register_forward_pre_hook(lambda m, a: seen.append(a[0]))
    with torch.no_grad():
        model(**batch)
    handle.remove()
    written = seen[0][..., 8:16] @ dense.weight[:, 8:16].T
    lengths = written.norm(dim=-1)
    expected = (lengths[0].mean() + lengths[1, :5].mean()).item() / 2
    assert hp.score(model, [batch], method="output-norm")["encoder.0:1"] == pytest.approx(expected, rel=1e-5)
