"""SmolLM2 in a real llama.cpp, and every cell of the table of runtimes."""

from __future__ import annotations

import copy
import json

import pytest
from tools.runtimes import FAMILIES, FORMATS, SHAPES, STORED, answer

import headprune as hp
from headprune.checkpoint.export import export_checked
from headprune.checkpoint.exports.gguf.comparison import TEXT, Exact
from headprune.checkpoint.exports.gguf.graph import decoder_of
from headprune.checkpoint.exports.gguf.runtime import LlamaCpp
from tests.slow.test_real_models import smollm2_and_tokenizer

pytestmark = pytest.mark.slow

LENGTH = 64


@pytest.fixture(scope="module")
def smollm2():
    model, tokenizer, _ = smollm2_and_tokenizer(None)
    return model.eval(), tokenizer


def masks(heads):
    """Uneven groups; uneven groups and neurons; the first and a middle layer empty."""
    full = hp.HeadMask.full(heads)
    groups = [f"decoder.{layer}:{head}" for layer in range(3, 30, 4) for head in (3, 4, 5)]
    neurons = [f"neurons.{layer}:{index}" for layer in range(2, 30, 3) for index in range(0, 37 * (layer % 5), 2)]
    yield "uneven groups", full.without(*groups)
    yield "uneven groups and neurons", full.without(*groups, *neurons)
    yield "first and middle empty", full.without("decoder.0", "decoder.14")


def gap_by_default(file, model, tokens):
    """With flash attention and a cache in 16 bits."""
    expected = model.log_probs(tokens)
    with LlamaCpp(file, context=256, exact=False) as opened:
        told = [opened.log_prob(tokens[: i + 1], tokens[i + 1]) for i in range(len(tokens) - 1)]
    return max(abs(value - float(expected[i, tokens[i + 1]])) for i, value in enumerate(told))


def test_smollm2_with_three_masks_answers_in_llama_cpp_as_in_pytorch(smollm2, tmp_path):
    """Within 1e-3 in float32, and by default of the order of the whole model; Q8_0 costs at most 1 %."""
    import torch

    model, tokenizer = smollm2
    tokens = tokenizer(TEXT)["input_ids"][:LENGTH]
    heads = hp.find_heads(model, neurons=True)
    ids = torch.tensor(tokens[:16])
    whole, _ = export_checked(model, tmp_path / "whole.gguf", "gguf", quantize="f32", tokenizer=tokenizer)
    control = gap_by_default(whole, Exact(model, decoder_of(model, ids)), tokens)
    for name, mask in masks(heads):
        small = hp.prune_(copy.deepcopy(model), mask)
        file, found = export_checked(small, tmp_path / f"{name}.gguf", "gguf", quantize="f32", tokenizer=tokenizer)
        assert found.figures["gap"] < 1e-3, name
        assert gap_by_default(file, Exact(small, decoder_of(small, ids)), tokens) < 3 * control, name
        _, rough = export_checked(small, tmp_path / "rough.gguf", "gguf", quantize="q8_0", tokenizer=tokenizer)
        assert rough.figures["perplexity"] < 1.01 * rough.figures["perplexity_f32"], name


@pytest.mark.parametrize("family", FAMILIES)
def test_every_cell_of_the_table_is_what_trying_finds(family):
    """All runtimes and shapes."""
    cells = json.loads(STORED.read_text())["cells"]
    for shape in SHAPES:
        for name in FORMATS:
            assert answer(name, family, shape) == cells[f"{name} {family} {shape}"]
