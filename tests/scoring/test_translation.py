"""Scores of encoder-decoders on translations."""

from __future__ import annotations

import pytest
import torch

import headprune as hp
from headprune.heads import HeadId, HeadMask
from headprune.scoring.ablation_engine import ablate
from headprune.scoring.context import ExampleLoss, ScoringContext, model_inputs
from headprune.structure.find import find_heads
from headprune.tasks import Source
from headprune.tasks.translation.beam_search import Search
from headprune.tasks.translation.presets import new_translator
from tests.tasks.parallel import SMALL, task_for


@pytest.fixture
def tokenizer(pair_tokenizer):
    return pair_tokenizer


def test_the_encoder_is_reused_for_decoder_and_cross_sites(tokenizer, pair_folder):
    """The same outcomes as running everything, with one encoder pass for all sites after it."""
    model = new_translator(SMALL, tokenizer, seed=1).eval()
    task = task_for(tokenizer, model, search=Search(beams=2))
    batch = next(task.load(Source(pair_folder), "dev", tokenizer, 60).batches(4))
    heads = find_heads(model)
    full = HeadMask.full(heads)
    found = {}
    for reuse in (True, False):
        job = ScoringContext(
            model=model, heads=heads, batches=[batch], loss=ExampleLoss(), run=task.answer, searches=True
        )
        passes = []
        handle = model.model.encoder.register_forward_hook(lambda *_, seen=passes: seen.append(1))
        found[reuse] = ablate(job, lambda s, h: full.without(HeadId(s.id, h)), task.outcome, reuse=reuse)
        handle.remove()
        # Once for the whole model, once for each of 8 encoder heads; a check of the first and last site needs 3 more.
        assert len(passes) == (1 + 8 + 3 if reuse else 1 + 24)
    for head in found[True].changed:
        assert torch.equal(found[True].outcomes(head), found[False].outcomes(head))
    assert found[True].share_reused == pytest.approx(16 / 24)


def test_token_sensitivity_counts_source_and_target_tokens(tokenizer, pair_folder):
    """Padding counts on neither side: encoder sites divide by source tokens, the others by target tokens."""
    model = new_translator(SMALL, tokenizer, seed=1).eval()
    task = task_for(tokenizer, model)
    rows = task.load(Source(pair_folder), "dev", tokenizer, 60)
    batches = [model_inputs(batch) for batch in rows.batches(3)]
    scores = hp.score(model, batches, reduction="token", loss="sum")
    sources = sum(int(batch["attention_mask"].sum()) for batch in batches)
    targets = sum(int((batch["labels"] != -100).sum()) for batch in batches)
    assert sources != targets
    for site, count in scores.counts.items():
        assert count == (sources if site.startswith("encoder") else targets), site


def test_example_sensitivity_is_the_same_one_by_one(tokenizer, pair_folder):
    """Padded batches give every sentence's own gradient."""
    model = new_translator(SMALL, tokenizer, seed=1).eval()
    rows = task_for(tokenizer, model).load(Source(pair_folder), "dev", tokenizer, 60)
    together, alone = (
        hp.score(model, [model_inputs(batch) for batch in rows.batches(size)]).to_dict()["scores"] for size in (6, 1)
    )
    for site, row in together.items():
        assert row == pytest.approx(alone[site], rel=1e-4, abs=1e-7)
