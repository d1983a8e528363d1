"""Attention that does not call its output projection is opened for a block of code, and closed after it."""

from __future__ import annotations

import copy
import io
import itertools

import pytest
import torch
from tools.families.build_model import build
from torch import nn

import headprune as hp
from headprune.hooks import called_projections
from headprune.hooks.multihead import multihead_attention
from headprune.structure.run import run


def as_it_is(model):
    """The class and the attributes of every module."""
    return {
        path: (type(module), {**vars(module), "_modules": dict(module._modules)})
        for path, module in model.named_modules()
    }


@pytest.mark.parametrize("model_type", ["xlnet", "wavlm"])
def test_finding_masking_and_scoring_leave_the_model_as_it_was(model_type):
    """Every module has the class and the attributes that it had."""
    built = build(model_type)
    before = as_it_is(built.model)
    heads = hp.find_heads(built.model, built.batch)
    assert as_it_is(built.model) == before
    with hp.masked(built.model, hp.HeadMask.full(heads).without("encoder.0:1")):
        run(built.model, built.batch)
    hp.score(built.model, [built.batch], method="output-norm", heads=heads)
    hp.plan(built.model, hp.HeadMask.empty(heads), example=built.batch)
    assert as_it_is(built.model) == before


@pytest.mark.parametrize("emptied", [False, True])
def test_a_pruned_xlnet_keeps_its_classes_and_can_be_copied_and_pickled(emptied):
    """What stands for the projection of an emptied site is an attribute of that site alone."""
    built = build("xlnet")
    kinds = {path: type(module) for path, module in built.model.named_modules()}
    heads = hp.find_heads(built.model, built.batch)
    gone = ["encoder.0"] if emptied else ["encoder.0:1"]
    pruned = hp.prune_(built.model, hp.HeadMask.full(heads).without(*gone), example=built.batch)
    assert all(type(module) is kinds[path] for path, module in pruned.named_modules() if path in kinds)
    file = io.BytesIO()
    torch.save(pruned, file)
    file.seek(0)
    with torch.no_grad():
        expected = run(pruned, built.batch).logits
        for twin in (copy.deepcopy(pruned), torch.load(file, weights_only=False)):
            assert torch.equal(run(twin, built.batch).logits, expected)


def test_an_emptying_that_is_undone_leaves_nothing():
    """Also where an output projection had to be made first."""
    from headprune.surgery.prune import temporarily_pruned

    built = build("xlnet")
    before = as_it_is(built.model)
    heads = hp.find_heads(built.model, built.batch)
    with temporarily_pruned(built.model, hp.HeadMask.empty(heads), example=built.batch):
        assert as_it_is(built.model) != before
    assert as_it_is(built.model) == before


def test_a_block_inside_another_does_not_close_it():
    """The outermost does, whichever ends first."""
    model = nn.MultiheadAttention(16, 4)
    outer, inner = called_projections(model), called_projections(model)
    outer.__enter__()
    inner.__enter__()
    outer.__exit__(None, None, None)
    assert "forward" in vars(model)
    assert not torch.backends.mha.get_fastpath_enabled()
    inner.__exit__(None, None, None)
    assert "forward" not in vars(model)
    assert torch.backends.mha.get_fastpath_enabled()


MASKS = {
    "none": None,
    "bool": torch.ones(7, 7, dtype=torch.bool).triu(1),
    "float": torch.randn(7, 7, generator=torch.Generator().manual_seed(1)),
    "by head": torch.randn(12, 7, 7, generator=torch.Generator().manual_seed(2)),
}


@pytest.mark.parametrize(
    "options", [{}, {"add_bias_kv": True}, {"add_zero_attn": True}, {"bias": False}, {"kdim": 24, "vdim": 24}]
)
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("mask", MASKS)
def test_multihead_attention_has_the_bits_of_pytorchs(options, batch_first, mask):
    """Of self-attention and of keys and values from elsewhere; with padding, weights and the hint of causality."""
    torch.manual_seed(0)
    module = nn.MultiheadAttention(32, 4, batch_first=batch_first, **options).eval()
    query = torch.randn(3, 7, 32) if batch_first else torch.randn(7, 3, 32)
    other = torch.randn(*query.shape[:2], options.get("kdim", 32))
    padding = torch.zeros(3, 7, dtype=torch.bool)
    padding[1, 4:] = True
    sources = [(other, other), (other, other.clone()), *([] if "kdim" in options else [(query, query)])]
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        for (key, value), hidden, weights, average in itertools.product(
            sources, (None, padding), (True, False), (True, False)
        ):
            causal = mask == "bool" and set(options) <= {"bias", "kdim", "vdim"}
            hidden = hidden if mask in ("none", "bool") or hidden is None else hidden.float() * -9.0
            given = (query, key, value, hidden, weights, MASKS[mask], average, causal)
            expected, found = module(*given), multihead_attention(module, *given)
            assert torch.equal(found[0], expected[0])
            assert (found[1] is None) == (expected[1] is None)
            assert found[1] is None or torch.equal(found[1], expected[1])
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
