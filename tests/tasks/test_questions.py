"""Questions with answers in a text."""

from __future__ import annotations

import pytest
import torch
import transformers
from transformers import BertConfig

import headprune as hp
from headprune.errors import DataError
from headprune.tasks import Source, evaluate, find_task
from tests.tasks.toy import TINY, tokenizer, write_rows

QUESTIONS = [
    {"question": "plot was ?", "context": "the film is good and the plot is poor",
     "answers": {"text": ["poor"], "answer_start": [33]}},
    {"question": "film is ?", "context": "the film is good and the plot is poor",
     "answers": {"text": ["good"], "answer_start": [12]}},
    {"question": "story ?", "context": "a film", "answers": {"text": [], "answer_start": []}},
]  # fmt: skip


class Pointing:
    """Stands for a model's output: logits that point at given tokens."""

    def __init__(self, starts, ends, width):
        self.start_logits, self.end_logits = (torch.zeros(len(starts), width) for _ in range(2))
        for row, (start, end) in enumerate(zip(starts, ends, strict=True)):
            self.start_logits[row, start], self.end_logits[row, end] = 9.0, 9.0


def test_answers_are_compared_as_squad_does(tmp_path):
    """The right span scores 1, half of it less, none 0; no answer is an answer."""
    write_rows(tmp_path, "dev", QUESTIONS)
    task = find_task("questions")
    examples = task.load(Source(tmp_path), "dev", tokenizer(), 32)
    batch = examples.collate(list(examples.features))
    starts, ends = batch["start_positions"].tolist(), batch["end_positions"].tolist()
    assert (starts[2], ends[2]) == (0, 0)
    width = batch["input_ids"].shape[1]
    assert task.outcome(Pointing(starts, ends, width), batch).tolist() == [[1.0, 1.0], [1.0, 1.0], [1.0, 1.0]]
    wider = task.outcome(Pointing([starts[0] - 1, starts[1], 0], [ends[0], ends[1] + 1, 0], width), batch)
    assert wider.tolist() == [[0.0, pytest.approx(2 / 3)], [0.0, pytest.approx(2 / 3)], [1.0, 1.0]]
    model = transformers.BertForQuestionAnswering(BertConfig(vocab_size=23, **TINY)).eval()
    found = evaluate(model, list(examples.batches(2)), task)
    assert found.rows.shape == (3, 2)
    scores = hp.score(model, [{k: v for k, v in b.items() if k not in ("row", "_asked")} for b in examples.batches(2)])
    assert scores.counts["encoder.0"] == 3.0


def test_answers_that_are_not_there_are_told(tmp_path):
    """A wrong place, and answers of another shape; a cut-off answer is not found."""
    write_rows(tmp_path, "dev", [{**QUESTIONS[0], "answers": {"text": ["poor"], "answer_start": [3]}}])
    with pytest.raises(DataError, match="does not stand at character 3"):
        find_task("questions").load(Source(tmp_path), "dev", tokenizer(), 32)
    write_rows(tmp_path, "dev", [{**QUESTIONS[0], "answers": "poor"}])
    with pytest.raises(DataError, match="expected answers like"):
        find_task("questions").load(Source(tmp_path), "dev", tokenizer(), 32)
    write_rows(tmp_path, "dev", QUESTIONS[:1])
    cut = find_task("questions").load(Source(tmp_path), "dev", tokenizer(), 10)
    assert (cut.features[0]["start_positions"], cut.features[0]["end_positions"]) == (0, 0)
