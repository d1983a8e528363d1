"""Question answering: where in a passage does the answer stand?"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from headprune.errors import DataError
from headprune.tasks.metrics import ANSWERS, Metric, metrics
from headprune.tasks.tables import SPLITS, Source
from headprune.tasks.task import Batch, Examples, Features, Task
from headprune.types import Outputs, Processor, Tokenizer

LONGEST = 30  # tokens of an answer at most, as usual for SQuAD


@dataclass(frozen=True, kw_only=True)
class QuestionTask(Task):
    """Rows of SQuAD: `question`, `context`, `answers` = {"text": […], "answer_start": […]} (none: no answer).

    A passage longer than an example may be is cut, and an answer that was cut off counts as not found.
    """

    name: str = "questions"
    metric: Metric = field(default_factory=lambda: metrics["answer-f1"])
    outcomes: ClassVar[str] = ANSWERS
    model_class: ClassVar[str] = "AutoModelForQuestionAnswering"

    def load(self, source: Source, split: str, processor: Processor, max_length: int) -> Examples:
        table = source.table(SPLITS.get(split, (split,)), ["question", "context", "answers"])
        questions, contexts = ([str(text) for text in table.column(name)] for name in ("question", "context"))
        try:
            encoded = processor(questions, contexts, truncation="only_second", max_length=max_length,
                                return_offsets_mapping=True)  # fmt: skip
        except Exception as error:  # the tokenizers library raises nothing more special
            raise DataError(f"{table.path}: a question alone is longer than {max_length} tokens ({error}).") from error
        offsets = encoded.pop("offset_mapping")
        rows = []
        for row, given in enumerate(table.column("answers")):
            answers = _answers(given, contexts[row], f"{table.path}, example {row + 1}")
            places = [
                piece if part == 1 else None
                for piece, part in zip(offsets[row], encoded.sequence_ids(row), strict=True)
            ]
            start, end = _span(answers[0], places) if answers else (0, 0)
            rows.append({
                **{name: values[row] for name, values in encoded.items()},
                "start_positions": start, "end_positions": end,
                "_asked": _Asked(contexts[row], tuple(places), tuple(text for text, _ in answers)),
            })  # fmt: skip
        return Examples(rows, _Collator(processor))

    def outcome(self, outputs: Outputs, batch: Batch) -> Tensor:
        """Exact match and F1 of the likeliest span, against the nearest right answer."""
        rows = []
        for start, end, asked in zip(outputs.start_logits, outputs.end_logits, batch["_asked"], strict=True):
            found = asked.text(*_likeliest(start.float(), end.float(), asked))
            right = asked.answers or ("",)
            rows.append([max(score(found, text) for text in right) for score in (_is_same, _overlap)])
        return torch.tensor(rows, dtype=torch.float64)  # (batch, 2)


@dataclass(frozen=True)
class _Asked:
    """What is needed to turn a span of tokens into words."""

    context: str
    places: tuple[tuple[int, int] | None, ...]  # characters of each token of the passage; None for other tokens
    answers: tuple[str, ...]

    def text(self, start: int, end: int) -> str:
        first, last = self.places[start], self.places[end]
        return "" if first is None or last is None else self.context[first[0] : last[1]]


def _answers(given: object, context: str, where: str) -> list[tuple[str, int]]:
    """Text and first character of every right answer."""
    if given is None:
        return []
    if not isinstance(given, Mapping) or not {"text", "answer_start"} <= set(given):
        raise DataError(
            f'{where}: expected answers like {{"text": ["…"], "answer_start": [0]}}, found {str(given)[:60]}.'
        )
    texts, starts = given["text"], given["answer_start"]
    if not isinstance(texts, list) or not isinstance(starts, list) or len(texts) != len(starts):
        raise DataError(f"{where}: expected as many texts as starts of answers, found {str(given)[:60]}.")
    answers = [(str(text), start) for text, start in zip(texts, starts, strict=True)]
    for text, start in answers:
        if type(start) is not int or start < 0 or context[start : start + len(text)] != text:
            raise DataError(f"{where}: the answer '{text[:40]}' does not stand at character {start!r} of the passage.")
    return answers


def _span(answer: tuple[str, int], places: Sequence[tuple[int, int] | None]) -> tuple[int, int]:
    """The first and last token of an answer; 0, 0 if it was cut off."""
    first, last = answer[1], answer[1] + len(answer[0])
    inside = [i for i, place in enumerate(places) if place is not None and place[0] < last and place[1] > first]
    whole = inside and (places[inside[-1]] or (0, 0))[1] >= last
    return (inside[0], inside[-1]) if whole else (0, 0)


def _likeliest(start: Tensor, end: Tensor, asked: _Asked) -> tuple[int, int]:
    """The best span inside the passage, or 0, 0 (no answer) if that is likelier."""
    size = len(asked.places)  # without the batch's padding
    sums = start[:size, None] + end[None, :size]  # (start, end)
    none = sums[0, 0].clone()
    outside = torch.tensor([place is None for place in asked.places], device=sums.device)
    allowed = torch.ones_like(sums).triu().tril(LONGEST - 1).bool() & ~outside[:, None] & ~outside[None, :]
    sums = sums.masked_fill(~allowed, -torch.inf)
    best = int(sums.argmax())
    if none > sums.flatten()[best] or not bool(allowed.any()):
        return 0, 0
    return best // size, best % size


def _normal(text: str) -> str:
    """Lower case, no punctuation, no articles, single blanks: what SQuAD compares."""
    plain = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", plain).split())


def _is_same(found: str, right: str) -> float:
    return float(_normal(found) == _normal(right))


def _overlap(found: str, right: str) -> float:
    mine, theirs = _normal(found).split(), _normal(right).split()
    if not mine or not theirs:
        return float(mine == theirs)
    shared = sum((Counter(mine) & Counter(theirs)).values())
    return 2 * shared / (len(mine) + len(theirs))


@dataclass(frozen=True)
class _Collator:
    tokenizer: Tokenizer

    def __call__(self, rows: list[Features]) -> dict[str, Any]:
        own = ("start_positions", "end_positions", "_asked")
        inputs = [{name: value for name, value in row.items() if name not in own} for row in rows]
        ends = {name: torch.tensor([row[name] for row in rows]) for name in own[:2]}
        return {**self.tokenizer.pad(inputs, return_tensors="pt"), **ends, "_asked": [row["_asked"] for row in rows]}
