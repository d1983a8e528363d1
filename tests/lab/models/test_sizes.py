"""Parameters and operations by arithmetic that agrees with real models."""

from __future__ import annotations

import copy

import pytest
import torch

import headprune as hp
from headprune.cost.macs import count_macs_of
from headprune.lab.models.sizes import macs_per_token, parameters
from tests.lab.models.toy import paper, tiny


@pytest.mark.parametrize("kind", ["all_attention", "transformer_xl"])
@pytest.mark.parametrize("more", [{}, {"cutoffs": [8, 20]}, {"tie_word_embeddings": False, "positions": "sinusoidal"},
                                  {"cutoffs": [8], "tie_word_embeddings": False, "final_norm": True}])  # fmt: skip
def test_the_arithmetic_counts_what_real_models_have(kind, more):
    """Whole, pruned, and with a layer that lost all heads."""
    model = tiny(kind, **more)
    heads = hp.find_heads(model)
    for kept in ({}, {"decoder.0": [1], "decoder.2": [0, 2, 3]}, {"decoder.1": []}):
        mask = hp.HeadMask.from_dict(heads, kept)
        pruned = hp.prune_(copy.deepcopy(model), mask)
        counts = [len(mask.kept(site.id)) for site in heads]
        assert parameters(model.config, counts).total == sum(p.numel() for p in pruned.parameters())


@pytest.mark.parametrize("kind", ["all_attention", "transformer_xl"])
def test_the_arithmetic_counts_what_real_models_do(kind):
    """Against PyTorch's counter, on a segment behind a full memory."""
    model = tiny(kind, attn_implementation="eager")
    model.set_attn_implementation("eager")
    heads = hp.find_heads(model)
    mask = hp.HeadMask.from_dict(heads, {"decoder.0": [1], "decoder.2": [0, 2, 3]})
    pruned = hp.prune_(model, mask).requires_grad_(False)
    ids = torch.zeros(1, 8, dtype=torch.long)
    memory = pruned(torch.zeros(1, 20, dtype=torch.long)).past_key_values
    counted = count_macs_of(lambda: pruned.model(ids, past_key_values=memory))
    kept = [len(mask.kept(site.id)) for site in heads]
    assert counted == 8 * macs_per_token(pruned.config, kept, segment=8, distances="span")


def test_counts_of_impossible_models_are_refused():
    """A number of heads for every layer, and a segment where there is no memory."""
    with pytest.raises(hp.HeadpruneError, match="each of 16 layers"):
        parameters(paper(), [8] * 15)
    with pytest.raises(hp.HeadpruneError, match="segment"):
        macs_per_token(hp.AllAttentionConfig(memory_length=0))
