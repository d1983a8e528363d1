"""Beam search and its length penalty."""

from __future__ import annotations

import pytest
import torch

from headprune.errors import DataError
from headprune.tasks.translation.beam_search import SEARCHES, GnmtPenalty, Search


def test_the_gnmt_penalty_is_the_formula():
    """Division by ((5 + length) / 6) ** alpha."""
    assert 7 ** GnmtPenalty(0.6) == pytest.approx((12 / 6) ** 0.6)
    assert 7 ** GnmtPenalty(0.0) == 1.0


@pytest.mark.parametrize("search", [Search(beams=3, length_penalty=1.0), SEARCHES["voita"]])
def test_generate_ranks_beams_by_the_penalty_of_the_paper(translator, tokenizer, search):
    """The scores that `generate` reports are log-probabilities divided as the search says."""
    inputs = dict(tokenizer(["the dog sees the red ball"], return_tensors="pt"))
    inputs.pop("token_type_ids", None)
    exponent = GnmtPenalty(search.length_penalty) if search.penalty == "gnmt" else search.length_penalty
    with torch.no_grad():
        found = translator.generate(
            **inputs, num_beams=search.beams, num_return_sequences=search.beams, length_penalty=exponent,
            max_new_tokens=6, do_sample=False, return_dict_in_generate=True, output_scores=True,
        )  # fmt: skip
        for tokens, score in zip(found.sequences, found.sequences_scores, strict=True):
            logits = translator(**inputs, decoder_input_ids=tokens[None, :-1]).logits.log_softmax(-1)
            steps = logits[0].gather(1, tokens[1:, None])[:, 0]
            real = tokens[1:] != tokenizer.pad_token_id
            length = int(real.sum())
            divisor = ((5 + length) / 6) ** search.length_penalty if search.penalty == "gnmt" else length
            assert float(steps[real].sum()) / divisor == pytest.approx(float(score), rel=1e-4)


def test_a_model_that_never_ends_is_ended_by_its_own_source(translator, tokenizer, monkeypatch):
    """A short sentence beside a long one costs no more than alone, and the end is the model's own token."""
    search = Search(beams=2, ratio=1.0, extra=2)
    texts = ["the dog", "the dog sees the red ball and the cat sees the dog and the red ball sees the cat"]
    inputs = dict(tokenizer(texts, return_tensors="pt", padding=True))
    inputs.pop("token_type_ids", None)
    end = translator.config.eos_token_id
    monkeypatch.setattr(translator.generation_config, "suppress_tokens", [end], raising=False)
    with torch.no_grad():
        found = search.run(translator, inputs, 100)
    lengths = inputs["attention_mask"].sum(1)
    for tokens, source in zip(found, lengths, strict=True):
        said = tokens[1:][(tokens[1:] != tokenizer.pad_token_id) & (tokens[1:] != end)]
        assert 1 <= len(said) <= int(source) + 2


def test_a_search_is_checked():
    """A beam of nothing, a penalty of no paper."""
    with pytest.raises(DataError, match="expected 1"):
        Search(beams=0)
    with pytest.raises(DataError, match="power or gnmt"):
        Search(penalty="none")
