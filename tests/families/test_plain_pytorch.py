"""Models that know nothing of transformers: `nn.MultiheadAttention` by itself and inside PyTorch's own layers."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import headprune as hp
from headprune.structure.run import difference


class Translator(nn.Module):
    """nn.Transformer as people use it."""

    def __init__(self):
        super().__init__()
        self.transformer = nn.Transformer(32, 4, 2, 2, 48, batch_first=True, dropout=0.0)

    def forward(self, src, tgt, padding=None):
        return self.transformer(src, tgt, src_key_padding_mask=padding, memory_key_padding_mask=padding)


class Encoder(nn.Module):
    """An encoder of PyTorch, whose layers have a fast path that never calls the attention module."""

    def __init__(self, batch_first=True):
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 48, batch_first=batch_first, dropout=0.0)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=batch_first)

    def forward(self, src, padding=None):
        return self.encoder(src, src_key_padding_mask=padding)


def large(model):
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model.eval()


def padding():
    hidden = torch.zeros(2, 7, dtype=torch.bool)
    hidden[1, 4:] = True
    return hidden


class Reader(nn.Module):
    """One attention module with options that few use: entries of its own, keys and values of other widths."""

    def __init__(self, **options):
        super().__init__()
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True, **options)
        self.out = nn.Linear(32, 8)

    def forward(self, text, picture, padding=None):
        return self.out(self.attention(text, picture, picture, key_padding_mask=padding)[0])


READ = {"text": torch.randn(2, 5, 32), "picture": torch.randn(2, 7, 32)}
CASES = {
    "learned entries": (lambda: Reader(add_bias_kv=True), READ),
    "entries of zeros": (lambda: Reader(add_zero_attn=True, add_bias_kv=True), READ),
    "other widths": (lambda: Reader(kdim=16, vdim=16), READ | {"picture": torch.randn(2, 7, 16)}),
    "encoder-decoder": (Translator, {"src": torch.randn(2, 7, 32), "tgt": torch.randn(2, 5, 32)}),
    "encoder": (Encoder, {"src": torch.randn(2, 7, 32)}),
    "sequence first": (lambda: Encoder(batch_first=False), {"src": torch.randn(7, 2, 32)}),
}


@pytest.mark.filterwarnings("ignore:.*nested.tensor")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("padded", [False, True])
def test_removed_equals_masked(case, padded):
    """In evaluation mode without gradients, where PyTorch would take its fast path, and with padding."""
    make, batch = CASES[case]
    model = large(make())
    heads = hp.find_heads(model, batch)
    assert heads.skipped == ()
    given = {**batch, "padding": padding()} if padded else batch
    mask = hp.HeadMask.full(heads).without(*(f"{site.id}:1" for site in heads))
    with torch.no_grad():
        whole = model(**given)
        with hp.masked(model, mask, heads=heads):
            expected = model(**given)
        pruned = hp.prune_(copy.deepcopy(model), mask, example=batch)
        found = pruned(**given)
    assert not difference(expected, whole).is_small
    assert difference(found, expected).is_small
    assert torch.backends.mha.get_fastpath_enabled()


def test_all_components_of_an_encoder_decoder_are_found():
    """Two layers of each."""
    make, batch = CASES["encoder-decoder"]
    heads = hp.find_heads(large(make()), batch)
    assert {c: sum(s.component == c for s in heads) for c in heads.components} == {
        "encoder": 2,
        "decoder": 2,
        "cross": 2,
    }


def test_a_refused_pruning_gives_the_nested_tensors_back():
    """Undoing restores the encoder, too."""
    make, batch = CASES["encoder"]
    model = large(make())
    before = model.encoder.use_nested_tensor
    from headprune.surgery.prune import temporarily_pruned

    heads = hp.find_heads(model, batch)
    with temporarily_pruned(model, hp.HeadMask.full(heads).without("encoder.0:1"), example=batch):
        assert model.encoder.use_nested_tensor is False
    assert model.encoder.use_nested_tensor is before


def test_an_input_without_a_batch_may_have_padding():
    """One row of it, as PyTorch takes it."""
    model = large(Encoder())
    mask = hp.HeadMask.full(heads := hp.find_heads(model, CASES["encoder"][1])).without("encoder.0:1")
    row, hidden = torch.randn(7, 32), padding()[1]
    with torch.no_grad(), hp.masked(model, mask, heads=heads):
        expected = model(row, hidden)
    hp.prune_(model, mask, example=CASES["encoder"][1])
    assert difference(model(row, hidden), expected).is_small


def test_plain_pytorch_attention_on_raw_inputs():
    """nn.MultiheadAttention fed with the input itself; sequence-first and batch-first."""
    for batch_first in (True, False):

        class Model(nn.Module):
            def __init__(self, batch_first=batch_first):
                super().__init__()
                self.attention = nn.MultiheadAttention(16, 4, batch_first=batch_first)

            def forward(self, x):
                return self.attention(x, x, x)[0]

        torch.manual_seed(0)
        model, x = Model().eval(), torch.randn(3, 3, 16)
        heads = hp.find_heads(model, example={"x": x})
        assert [(s.id, s.num_heads) for s in heads] == [("encoder.0", 4)]
        weights = torch.ones(3, 4)
        weights[1, 2] = 0.0
        with torch.no_grad():
            plain = model(x)
            with hp.masked(model, {"encoder.0": weights}):
                found = model(x)
        changed = (found - plain).abs().sum(-1) > 1e-6
        assert changed.all(1 if batch_first else 0).tolist() == [False, True, False]
        mask = hp.HeadMask.full(heads).without("encoder.0:2")
        with torch.no_grad(), hp.masked(model, mask):
            expected = model(x)
        hp.prune_(model, mask, example={"x": x})
        with torch.no_grad():
            assert torch.allclose(model(x), expected, atol=1e-6)
