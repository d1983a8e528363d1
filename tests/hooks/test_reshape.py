"""Blocks that reshape to the model's width follow the heads they have, at every length."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import headprune as hp
from headprune.errors import UnsupportedModelError
from headprune.hooks import Width
from headprune.structure.adapters import Adapter, adapters
from headprune.structure.run import difference


@pytest.fixture(autouse=True)
def named(monkeypatch):
    """That a class reshapes so is said by its name."""
    monkeypatch.setitem(adapters._items, "WideAttention", Adapter(reshapes_to_width=True))


class WideAttention(nn.Module):
    """Reshapes by the width of what comes in, as TrOCR, BLIP and others do; `rest` leaves a length to PyTorch."""

    def __init__(self, rest):
        super().__init__()
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.num_heads, self.rest = 4, rest

    def forward(self, x):
        batch, length, width = x.shape
        length = -1 if self.rest else length
        q, k, v = (
            part.reshape(batch, length, self.num_heads, width // self.num_heads).transpose(1, 2)
            for part in self.qkv(x).chunk(3, -1)
        )
        context = torch.softmax(q @ k.transpose(-1, -2) * 8**-0.5, -1) @ v
        return self.out(context.transpose(1, 2).reshape(batch, length, width))


class Model(nn.Module):
    def __init__(self, rest):
        super().__init__()
        self.attention = WideAttention(rest)

    def forward(self, x):
        return x + self.attention(x)


@pytest.mark.parametrize("rest", [False, True])
@pytest.mark.parametrize("gone", [(1,), (0, 2), (0, 1, 3)])
def test_removed_equals_masked_at_every_length(rest, gone):
    """Also at lengths where the wrong width divides, or is the length itself."""
    torch.manual_seed(0)
    model = Model(rest).eval()
    example = {"x": torch.randn(2, 7, 32)}
    heads = hp.find_heads(model, example)
    mask = hp.HeadMask.full(heads).without(*(f"encoder.0:{head}" for head in gone))
    pruned = hp.prune_(copy.deepcopy(model), mask, example=example)
    with torch.no_grad():
        for length in (*range(1, 26), 32, 40, 64):
            x = torch.randn(3, length, 32)
            with hp.masked(model, mask, heads=heads):
                expected = model(x)
            assert difference(pruned(x), expected).is_small, length


def test_a_class_that_no_adapter_names_is_refused_with_what_to_do(monkeypatch):
    """Reshapes are never rewritten by a rule alone."""
    monkeypatch.delitem(adapters._items, "WideAttention")
    model, example = Model(False).eval(), {"x": torch.randn(2, 7, 32)}
    mask = hp.HeadMask.full(hp.find_heads(model, example)).without("encoder.0:1")
    with pytest.raises(UnsupportedModelError, match=r'adapters.add\("WideAttention"\)'):
        hp.prune_(model, mask, example=example)


def test_the_model_can_be_compiled_and_copied():
    """The correction is part of the compiled code, and of a copy."""
    model = Model(False).eval()
    example = {"x": torch.randn(2, 7, 32)}
    heads = hp.find_heads(model, example)
    pruned = hp.prune_(model, hp.HeadMask.full(heads).without("encoder.0:1"), example=example)
    x = torch.randn(2, 8, 32)
    with torch.no_grad():
        expected = pruned(x)
        assert copy.deepcopy(pruned)(x).equal(expected)
        assert difference(torch.compile(pruned, backend="eager")(x), expected).is_small
    exported = torch.export.export(pruned, (x,)).module()
    assert difference(exported(x), expected).is_small


@given(heads=st.integers(1, 11), head_dim=st.integers(1, 16), batch=st.integers(1, 5), length=st.integers(1, 200))
def test_a_shape_that_fits_is_never_changed(heads, head_dim, batch, length):
    """The block may also reshape tensors of the model's full width."""
    width = Width(12 * head_dim, heads, head_dim)
    full = (batch, length, 12 * head_dim)
    for asked in (full, (batch * length, 12 * head_dim), (batch, -1, 12 * head_dim)):
        assert width.shape(asked, full) == asked
    for asked in ((batch, length, 12 * head_dim), (batch, -1, 12 * head_dim)):
        merged = width.shape(asked, (batch, length, heads, head_dim))
        assert merged in ((batch, length, heads * head_dim), (batch, -1, heads * head_dim))
    maps = (batch * heads, length, length)
    for asked in (maps, (batch, heads, length, length), (-1, length, length)):
        assert width.shape(asked, maps) == asked
