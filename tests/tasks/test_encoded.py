"""Rows that are encoded already."""

from __future__ import annotations

import pytest
import torch
import transformers
from transformers import BertConfig, GPT2Config

from headprune.errors import DataError
from headprune.tasks import Source, evaluate, find_task
from tests.tasks.toy import TINY, write_rows


def test_any_other_head_with_labels(tmp_path):
    """Multiple choice from encoded rows of several lengths: the loss is the model's own."""
    choices = [[[5, 6, 7], [5, 8, 9]], [[5, 6, 7, 8], [9, 10, 11, 12]], [[6, 7], [7, 8]]]
    rows = [{"input_ids": ids, "labels": label} for ids, label in zip(choices, (0, 1, 1), strict=True)]
    rows = [{**row, "attention_mask": [[1] * len(line) for line in row["input_ids"]]} for row in rows]
    write_rows(tmp_path, "dev", rows)
    task = find_task("encoded")
    model = transformers.BertForMultipleChoice(BertConfig(vocab_size=23, **TINY)).eval()
    found = evaluate(model, list(task.load(Source(tmp_path), "dev", None, 0).batches(3)), task)
    alone = [
        float(model(**{name: torch.tensor(value)[None] for name, value in row.items()}).loss.detach()) for row in rows
    ]
    assert found.rows[:, 0] == pytest.approx(alone, rel=1e-5)
    write_rows(tmp_path, "dev", [{"input_ids": "text", "labels": 0}])
    with pytest.raises(DataError, match="example 1: a value is not an array"):
        task.load(Source(tmp_path), "dev", None, 0)


def test_encoded_rows_do_not_depend_on_their_batch(tmp_path):
    """A classifier on a decoder, with a padding token that is not 0, and rows without attention masks."""
    rows = [{"input_ids": list(range(5, 5 + size)), "labels": size % 2} for size in (3, 5, 7, 4)]
    write_rows(tmp_path, "dev", rows)
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 16}
    config = GPT2Config(vocab_size=50, pad_token_id=49, num_labels=2, **sizes)
    torch.manual_seed(0)
    model = transformers.GPT2ForSequenceClassification(config).eval()
    task = find_task("encoded").for_model(config)
    examples = task.load(Source(tmp_path), "dev", None, 0)
    one, four = (evaluate(model, list(examples.batches(size)), task).rows for size in (1, 4))
    assert one == pytest.approx(four, rel=1e-4)
