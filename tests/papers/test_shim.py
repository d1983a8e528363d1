"""Known numbers of Shim et al. 2021."""

from __future__ import annotations

import math

import pytest

import headprune as hp
from headprune.lab.models.sizes import macs_per_token, parameters
from headprune.tasks.text.presets import PRESETS
from headprune.tasks.text.symbols import make_symbols
from tests.lab.models.toy import paper


def spread(total: int, layers: int) -> list[int]:
    """So many heads over the layers; how they are spread does not matter."""
    return [total // layers + (layer < total % layers) for layer in range(layers)]


def test_parameters_of_the_papers_models():
    """Tables 1 and 2: 54.6 M and 40.9 M without embeddings, 19.6 M around the larger."""
    assert parameters(paper()).layers / 1e6 == pytest.approx(54.6, abs=0.05)
    assert parameters(paper()).embeddings / 1e6 == pytest.approx(19.6, abs=0.05)
    assert parameters(paper(words=False)).layers / 1e6 == pytest.approx(40.9, abs=0.05)


@pytest.mark.parametrize(("words", "heads", "pruned", "sparsity", "millions"), [
    (True, 128, 22, 17.2, 45.2), (True, 128, 42, 32.8, 36.7), (True, 128, 56, 43.8, 30.7),
    (False, 96, 15, 15.6, 34.5), (False, 96, 26, 27.1, 29.8), (False, 96, 36, 37.5, 25.6),
])  # fmt: skip
def test_parameters_of_the_papers_pruned_models(words, heads, pruned, sparsity, millions):
    """Tables 1 and 2, at the sparsities they state."""
    config = paper(words)
    kept = spread(heads - pruned, config.num_hidden_layers)
    assert 100 * pruned / heads == pytest.approx(sparsity, abs=0.051)
    assert parameters(config, kept).layers / 1e6 == pytest.approx(millions, abs=0.05)


@pytest.mark.parametrize(("width", "millions"), [(512, 54.5), (480, 47.9), (448, 41.7), (416, 36.0), (384, 30.7)])
def test_widths_of_transformer_xl_in_figure_3(width, millions):
    """13 d^2 a layer; biases and norms add up to 0.1 M."""
    config = hp.TransformerXLConfig(hidden_size=width)
    assert parameters(config).layers / 1e6 == pytest.approx(millions, abs=0.15)


def test_half_of_the_heads_in_figure_1():
    """All-attention keeps half of everything; Transformer-XL 81 % of its parameters and about 73 % of its MACs."""
    ours, theirs = paper(), hp.TransformerXLConfig(memory_length=192)
    half = [4] * 16
    assert parameters(ours, half).layers / parameters(ours).layers == pytest.approx(0.5, abs=0.001)
    assert macs_per_token(ours, half) / macs_per_token(ours) == pytest.approx(0.5)
    assert parameters(theirs, half).layers / parameters(theirs).layers == pytest.approx(0.81, abs=0.005)
    shares = {
        way: macs_per_token(theirs, half, distances=way) / macs_per_token(theirs, distances=way)
        for way in ("once", "shared", "all")
    }
    assert shares["once"] == pytest.approx(0.732, abs=0.001)  # 73 % in the paper, whose formula is not published
    assert shares["shared"] == pytest.approx(0.746, abs=0.001)
    assert shares["all"] == pytest.approx(0.719, abs=0.001)
    kept = macs_per_token(theirs, half, memory="kept") / macs_per_token(theirs, memory="kept")
    assert kept == pytest.approx(0.762, abs=0.001)


def test_both_curves_of_figure_1_fall_with_every_head():
    """All-attention in a straight line to nothing, Transformer-XL to what its feed-forward part needs."""
    ours, theirs = paper(), hp.TransformerXLConfig(memory_length=192)
    lines = {
        name: [macs_per_token(config, [heads] * 16) / macs_per_token(config) for heads in range(9)]
        for name, config in (("ours", ours), ("theirs", theirs))
    }
    assert lines["ours"] == pytest.approx([heads / 8 for heads in range(9)])
    assert lines["theirs"][0] == pytest.approx(0.464, abs=0.001)
    assert lines["theirs"] == sorted(lines["theirs"])


@pytest.fixture(scope="module")
def tokenizer(text_folder):
    return make_symbols((text_folder / "train.txt").read_text(), "characters")


def test_presets_are_the_papers(tokenizer):
    """Shim et al., section 4.1: shapes, segments, batches, learning rates."""
    for name, layers, batch, length in (("wikitext-103", 16, 96, 192), ("text8", 12, 64, 512)):
        shape, recipe = PRESETS[name].shape, PRESETS[name].recipe
        assert (shape.layers, shape.width, shape.heads, shape.persistent) == (layers, 512, 8, 2048)
        assert (recipe.batch_size, recipe.max_length, shape.memory) == (batch, length, length)
        assert (recipe.learning_rate, recipe.learning_rate * recipe.floor) == (1e-2, pytest.approx(1e-4))
        assert (recipe.updates, recipe.warmup, recipe.optimizer, recipe.clip) == (160_000, 4000, "lamb", 0.5)


def test_shims_gate_at_its_start():
    """88 % open at 2, penalty 0.9426 a head, 120.7 for 128 heads, P(1) = sigmoid(pi) whatever the temperature."""
    gate = hp.BinaryConcrete(128)
    assert gate.log_alpha.tolist() == [2.0] * 128
    assert gate.prob_open()[0].item() == pytest.approx(0.8808, abs=1e-4)
    assert gate.penalty().item() / 128 == pytest.approx(0.9426, abs=1e-4)
    assert gate.penalty().item() == pytest.approx(120.7, abs=0.05)
    other = hp.BinaryConcrete(1, temperature=0.7)
    assert other.prob_one().item() == pytest.approx(1 / (1 + math.exp(-2)))
