"""A real trained model of sentences."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import AutoModel, AutoTokenizer

import headprune as hp
from headprune.structure.run import difference

SENTENCES = ["A gripping film with a clever script.", "Attention heads are cheap to mask."]


@pytest.fixture(scope="module")
def minilm_model(minilm):
    return AutoModel.from_pretrained(minilm).eval()


def half(model):
    return hp.HeadMask.random(hp.find_heads(model), keep=0.5, seed=0).without("encoder.2")


def test_a_real_trained_model_keeps_every_equality(minilm_model, minilm, tmp_path):
    """MiniLM on real sentences: masked = pruned = reloaded, with an emptied layer."""
    batch = dict(AutoTokenizer.from_pretrained(minilm)(SENTENCES, padding=True, return_tensors="pt"))
    mask = half(minilm_model)
    with torch.no_grad(), hp.masked(minilm_model, mask):
        expected = minilm_model(**batch).last_hidden_state
    pruned = hp.prune_(copy.deepcopy(minilm_model), mask, example=batch)
    with torch.no_grad():
        found = pruned(**batch).last_hidden_state
    assert difference(found, expected).is_small
    pruned.save_pretrained(tmp_path)
    with torch.no_grad():
        assert torch.equal(AutoModel.from_pretrained(tmp_path).eval()(**batch).last_hidden_state, found)


def test_sentence_transformers_gives_the_masked_models_embeddings(minilm_model, minilm, tmp_path):
    """`SentenceTransformer(folder)` on a pruned MiniLM, made by the command line."""
    from sentence_transformers import SentenceTransformer

    from headprune.checkpoint.out_folder import copy_companions

    whole = SentenceTransformer(str(minilm), device="cpu")
    mask = half(minilm_model)
    inner = next(m for m in whole.modules() if type(m).__name__ == "BertModel")
    with hp.masked(inner, mask):
        expected = whole.encode(SENTENCES)
    pruned = hp.prune_(copy.deepcopy(minilm_model), mask)
    pruned.save_pretrained(tmp_path / "small")
    copy_companions(minilm, tmp_path / "small")
    found = SentenceTransformer(str(tmp_path / "small"), device="cpu").encode(SENTENCES)
    assert abs(found - expected).max() < 1e-5
