"""Token classification: a tag for every word (parts of speech, names)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from headprune.errors import DataError
from headprune.scoring.context import IGNORED
from headprune.tasks.metrics import TAGS, Metric, metrics
from headprune.tasks.tables import SPLITS, Source
from headprune.tasks.task import Batch, Examples, Features, LabelledTask, Labels
from headprune.types import Outputs, Processor, Tokenizer


@dataclass(frozen=True, kw_only=True)
class TagTask(LabelledTask):
    """Rows with a list of words and a list of tags: JSON lines, CoNLL-U, or a data set."""

    name: str = "tags"
    metric: Metric = field(default_factory=lambda: metrics["token-accuracy"])
    words: tuple[str, ...] = ("tokens", "words")
    tags: tuple[str, ...] = ("tags", "ner_tags", "pos_tags", "upos")
    outcomes: ClassVar[str] = TAGS
    model_class: ClassVar[str] = "AutoModelForTokenClassification"
    takes_words: ClassVar[bool] = True

    def rows(self, source: Source, split: str) -> tuple[list[Any], list[Any], str, tuple[str, ...]]:
        """Words, tags, where they were found, and the names of numbered tags; every word has its tag."""
        table = source.table(SPLITS.get(split, (split,)), [*self.words, *self.tags])
        words, tags = table.column(*self.words), table.column(*self.tags)
        for number, (row, marks) in enumerate(zip(words, tags, strict=True), 1):
            fits = isinstance(row, list) and isinstance(marks, list) and len(row) == len(marks)
            if not fits or not row or not all(isinstance(word, str) for word in row):
                raise DataError(
                    f"{table.path}, example {number}: expected a list of words and a list of as many tags, found "
                    f"{str(row)[:40]} and {str(marks)[:40]}."
                )
        return words, tags, str(table.path), table.classes_of(*self.tags)

    def load(self, source: Source, split: str, processor: Processor, max_length: int) -> Examples:
        words, tags, where, _ = self.rows(source, split)
        check_splits_words(processor)
        if self.metric.name == "span-f1" and not self.labels.names:
            raise DataError(f"{where}: span-f1 needs tags with names (B-…, I-…, O); found numbers.")
        encoded = processor(words, is_split_into_words=True, truncation=True, max_length=max_length)
        rows = []
        for number, marks in enumerate(tags):
            known = [self.labels.number(mark, f"{where}, example {number + 1}") for mark in marks]
            first = _first_pieces(encoded.word_ids(number))
            labels = [int(known[word]) if word is not None else IGNORED for word in first]
            rows.append({**{name: values[number] for name, values in encoded.items()}, "labels": labels})
        return Examples(rows, _Collator(processor))

    def outcome(self, outputs: Outputs, batch: Batch) -> Tensor:
        """Right tags, tags, right spans, spans found, spans there; on the first piece of every word."""
        guesses, labels = outputs.logits.argmax(-1), batch["labels"]
        rows = []
        for guess, truth in zip(guesses, labels, strict=True):
            asked = truth != IGNORED
            mine, right = guess[asked].tolist(), truth[asked].tolist()
            found, there = spans(self._names(mine)), spans(self._names(right))
            hits = sum(a == b for a, b in zip(mine, right, strict=True))
            rows.append([hits, len(right), len(found & there), len(found), len(there)])
        return torch.tensor(rows, dtype=torch.float64)  # (batch, 5)

    def _names(self, classes: list[int]) -> list[str]:
        names = self.labels.model_names or self.labels.names
        return [names[index] for index in classes] if names else [f"B-{index}" for index in classes]

    def learned_from(self, source: Source, split: str = "train") -> TagTask:
        _, tags, where, names = self.rows(source, split)
        if names and not self.labels.count:
            return replace(self, labels=Labels(len(names), names))
        return replace(self, labels=self.labels.learned([tag for row in tags for tag in row], where))


def spans(tags: list[str]) -> set[tuple[str, int, int]]:
    """Kind, first and last word of every span; B- or another kind begins a new one, O and names without - end it."""
    found: set[tuple[str, int, int]] = set()
    kind, start = "", 0
    for place, tag in enumerate([*tags, "O"]):
        mark, _, this = tag.partition("-")
        if mark == "I" and this == kind:
            continue
        if kind:
            found.add((kind, start, place - 1))
        kind, start = this if mark in ("B", "I") else "", place
    return found


def splits_words(tokenizer: Tokenizer) -> bool:
    """Whether words that come as a list stay apart. Byte-level tokenizers glue them unless told to add a space."""
    ids = tokenizer([["a", "b"]], is_split_into_words=True, add_special_tokens=False)["input_ids"][0]
    return " " in tokenizer.decode(ids).strip()


def check_splits_words(tokenizer: Tokenizer) -> None:
    if not splits_words(tokenizer):
        raise DataError(
            "The tokenizer glues words together that come as a list. Load it with add_prefix_space=True: "
            "AutoTokenizer.from_pretrained(name, add_prefix_space=True)."
        )


def _first_pieces(word_ids: list[int | None]) -> list[int | None]:
    """The word of a piece that begins one, None for other pieces and special tokens."""
    return [
        word if word is not None and (i == 0 or word_ids[i - 1] != word) else None for i, word in enumerate(word_ids)
    ]


@dataclass(frozen=True)
class _Collator:
    tokenizer: Tokenizer

    def __call__(self, rows: list[Features]) -> dict[str, Tensor]:
        inputs = [{name: value for name, value in row.items() if name != "labels"} for row in rows]
        batch = dict(self.tokenizer.pad(inputs, return_tensors="pt"))
        width = batch["input_ids"].shape[1]
        padded = [row["labels"] + [IGNORED] * (width - len(row["labels"])) for row in rows]
        return {**batch, "labels": torch.tensor(padded)}
