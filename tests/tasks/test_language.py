"""Language models, causal and masked."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import transformers
from transformers import BertConfig, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from headprune.errors import DataError
from headprune.tasks import Source, evaluate, find_task
from tests.tasks.toy import TEXT, TINY, tokenizer, word_tokenizer


def test_perplexity_is_that_of_the_tokens(tmp_path):
    """exp of the mean loss over all predicted tokens, whatever the batches; larger without heads counts as worse."""
    (tmp_path / "valid.txt").write_text(TEXT)
    task, words = find_task("causal-lm"), word_tokenizer(TEXT)
    examples = task.load(Source(tmp_path), "dev", words, 16)
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(words), n_embd=32, n_layer=2, n_head=4, n_positions=16)).eval()
    total, count = 0.0, 0
    for row in examples.features:
        ids = torch.tensor(row["input_ids"])[None]
        with torch.no_grad():
            total += float(model(input_ids=ids, labels=ids).loss) * (ids.shape[1] - 1)
        count += ids.shape[1] - 1
    for size in (3, 64):
        found = evaluate(model, list(examples.batches(size)), task)
        assert found.score == pytest.approx(math.exp(total / count), rel=1e-5)
        assert found.rows[:, 1].sum() == count
    assert sum(len(row["input_ids"]) for row in examples.features) == len(TEXT.split())
    assert task.metric.gain(10.0, 12.0) == -2.0


def test_masked_words_are_the_same_for_every_model(tmp_path):
    """About 15 % are asked, only these have labels, and twice the same."""
    (tmp_path / "valid.txt").write_text(TEXT)
    task, words = find_task("masked-lm"), tokenizer()
    one, two = (task.load(Source(tmp_path), "dev", words, 16) for _ in range(2))
    assert all((a["input_ids"] == b["input_ids"]).all() for a, b in zip(one.features, two.features, strict=True))
    asked = np.concatenate([row["labels"] != -100 for row in one.features])
    assert 0.08 < asked.mean() < 0.25
    assert all(row["input_ids"][0] == words.cls_token_id for row in one.features)
    model = transformers.BertForMaskedLM(BertConfig(vocab_size=23, **TINY)).eval()
    found = evaluate(model, list(one.batches(8)), task)
    assert found.rows[:, 1].sum() == asked.sum()
    with pytest.raises(DataError, match="no mask token"):
        find_task("masked-lm").load(Source(tmp_path), "dev", PreTrainedTokenizerFast(
            tokenizer_object=words._tokenizer, pad_token="[PAD]", unk_token="[UNK]"), 16)  # fmt: skip


def test_masked_words_are_never_taken_for_next_words(tmp_path):
    """On untrained models both losses are near: the task knows which it is."""
    (tmp_path / "valid.txt").write_text(TEXT)
    task = find_task("masked-lm")
    batches = list(task.load(Source(tmp_path), "dev", tokenizer(), 16).batches(8))
    for seed in range(6):
        torch.manual_seed(seed)
        model = transformers.BertForMaskedLM(BertConfig(vocab_size=23, **TINY)).eval()
        found = evaluate(model, batches, task)
        total, count = 0.0, 0
        for batch in batches:
            asked = int((batch["labels"] != -100).sum())
            inputs = {name: value for name, value in batch.items() if name != "row"}
            with torch.no_grad():
                total += float(model(**inputs).loss) * asked
            count += asked
        assert found.rows[:, 0].sum() == pytest.approx(total, rel=1e-4)
