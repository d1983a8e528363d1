"""Language modelling: any text, in blocks of tokens; causal or masked. The metric is perplexity."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from headprune.errors import DataError
from headprune.scoring.context import IGNORED, next_tokens, token_labels
from headprune.tasks.json_lines import is_json_lines, text_of_lines
from headprune.tasks.metrics import TOKEN_LOSSES, Metric, metrics
from headprune.tasks.tables import KINDS, SPLITS, Source
from headprune.tasks.task import Batch, Examples, Features, Task
from headprune.tasks.text.corpus import read_part
from headprune.tasks.text.symbols import has_symbols, numbered, unit_of
from headprune.types import Outputs, Processor


@dataclass(frozen=True, kw_only=True)
class LanguageTask(Task):
    """Text without labels: `train`, `valid` and `test` as .txt, or a column of a table or data set."""

    name: str = "causal-lm"
    metric: Metric = field(default_factory=lambda: metrics["perplexity"])
    column: str = "text"
    outcomes: ClassVar[str] = TOKEN_LOSSES
    model_class: ClassVar[str] = "AutoModelForCausalLM"

    def text(self, source: Source, split: str, processor: Processor | None = None) -> str:
        if source.files:
            return "\n".join(_read(path, processor) for path in source.files)
        names = SPLITS.get(split, (split,))
        if source.dataset is None:
            try:
                path = source.file(names, (".txt",))
                if not source.splits or Path(path.name.removesuffix(".gz")).suffix not in KINDS:
                    return _read(path)
                table = source.table(names, [self.column])
            except DataError as error:
                try:
                    table = source.table(names, [self.column])
                except DataError:
                    raise error from None
        else:
            table = source.table(names)
        return "\n".join(str(text) for text in table.column(self.column))

    def load(self, source: Source, split: str, processor: Processor, max_length: int) -> Examples:
        tokens = self.tokens(source, split, processor)
        blocks = self.blocks(tokens, processor, max_length)
        if not blocks:
            raise DataError(f"The split '{split}' of {source} has {len(tokens)} tokens: too few for one example.")
        return Examples([self.features(np.asarray(block), i, processor) for i, block in enumerate(blocks)],
                        _Collator(processor.pad_token_id or 0))  # fmt: skip

    def tokens(self, source: Source, split: str, processor: Processor) -> list[int]:
        """The whole text: by words or characters if the tokenizer has these, else by subwords, line by line."""
        if has_symbols(processor):
            text = read_part(source, split, unit_of(processor))
            return [int(token) for token in numbered(text, processor, f"The part '{split}' of {source}")]
        lines = [line for line in self.text(source, split, processor).split("\n") if line.strip()]
        encoded = processor([line + "\n" for line in lines], add_special_tokens=False)["input_ids"] if lines else []
        return [token for line in encoded for token in line]

    def blocks(self, tokens: list[int], processor: Processor, max_length: int) -> list[list[int]]:
        """Pieces of `max_length` tokens one after another; the last may be shorter, but not a single token."""
        pieces = [tokens[start : start + max_length] for start in range(0, len(tokens), max_length)]
        return [piece for piece in pieces if len(piece) > 1]

    def features(self, block: object, number: int, processor: Processor) -> Features:
        """Every token is the label of the one before it: the model shifts."""
        return {"input_ids": block, "labels": block}

    def outcome(self, outputs: Outputs, batch: Batch) -> Tensor:
        """The summed loss of each example's own target tokens, and how many there are."""
        return torch.stack(next_tokens(outputs, batch), dim=1)  # (batch, 2)


@dataclass(frozen=True, kw_only=True)
class MaskedLanguageTask(LanguageTask):
    """15 % of the tokens are asked for: 80 % of these masked, 10 % replaced, 10 % left (Devlin et al. 2019).

    Which ones depends on the block's number alone, so that two models are asked the same.
    """

    name: str = "masked-lm"
    share: float = 0.15
    model_class: ClassVar[str] = "AutoModelForMaskedLM"

    def blocks(self, tokens: list[int], processor: Processor, max_length: int) -> list[list[int]]:
        if processor.mask_token_id is None:
            raise DataError("The tokenizer has no mask token: this model is not a masked language model.")
        before, after = _frame(processor)
        pieces = super().blocks(tokens, processor, max_length - len(before) - len(after))
        return [[*before, *piece, *after] for piece in pieces]

    def outcome(self, outputs: Outputs, batch: Batch) -> Tensor:
        return torch.stack(token_labels(outputs, batch), dim=1)  # (batch, 2)

    def features(self, block: Any, number: int, processor: Processor) -> Features:
        generator = np.random.default_rng(number)
        ordinary = ~np.isin(block, processor.all_special_ids)
        asked = ordinary & (generator.random(len(block)) < self.share)
        if not asked.any() and ordinary.any():
            asked[generator.choice(np.flatnonzero(ordinary))] = True
        how = generator.random(len(block))
        shown = np.where(asked & (how < 0.8), processor.mask_token_id, block)
        swapped = asked & (how >= 0.8) & (how < 0.9)
        shown = np.where(swapped, generator.integers(0, len(processor), len(block)), shown)
        return {"input_ids": shown, "labels": np.where(asked, block, IGNORED)}


@dataclass(frozen=True)
class _Collator:
    padding: int

    def __call__(self, rows: list[Mapping[str, Any]]) -> dict[str, Tensor]:
        width = max(len(row["input_ids"]) for row in rows)
        fills = {"input_ids": self.padding, "labels": IGNORED}
        batch = {
            name: torch.tensor(np.stack([_padded(row[name], width, fill) for row in rows]))
            for name, fill in fills.items()
        }
        kept = [np.ones(len(row["input_ids"]), dtype=np.int64) for row in rows]
        return {**batch, "attention_mask": torch.tensor(np.stack([_padded(row, width, 0) for row in kept]))}


def _frame(processor: Processor) -> tuple[list[int], list[int]]:
    """The special tokens that the tokenizer puts before and after a text."""
    inner, whole = processor("a", add_special_tokens=False)["input_ids"], processor("a")["input_ids"]
    start = next(i for i in range(len(whole)) if whole[i : i + len(inner)] == inner)
    return whole[:start], whole[start + len(inner) :]


def _padded(row: Any, width: int, fill: int) -> Any:
    return np.pad(row, (0, width - len(row)), constant_values=fill)


def _read(path: Path, processor: Processor | None = None) -> str:
    content = _content(path)
    return text_of_lines(content, path, processor) if is_json_lines(path) else content


def _content(path: Path) -> str:
    try:
        opener = gzip.open if path.suffix == ".gz" else open
        with opener(path, "rt", encoding="utf-8") as file:
            return str(file.read())
    except (OSError, UnicodeDecodeError, EOFError, zlib.error) as error:
        raise DataError(f"'{path}' cannot be read as text: {error}.") from error
