"""The translation task: a sentence in, its translation by beam search out, BLEU as the score.

With the metric `perplexity` nothing is translated: the probability of the reference is asked for, with one forward
pass a sentence (teacher forcing). It is a quick stand-in for BLEU; `settings` says which was used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headprune.errors import DataError
from headprune.files import write_text
from headprune.registry import hint
from headprune.scoring.context import IGNORED, ROW, token_labels
from headprune.tasks.metrics import Metric, metrics
from headprune.tasks.tables import Source
from headprune.tasks.task import Batch, Examples, Features, Task
from headprune.tasks.translation.beam_search import Search
from headprune.tasks.translation.pairs import Languages, Pairs, read_pairs, within_length
from headprune.tasks.translation.quality import TEACHER_FORCED, corpus_score, is_translated, sentence_counts, signature
from headprune.types import Config, Outputs, Processor

REFERENCES = "_references"


@dataclass(frozen=True)
class Translations:
    """What a search found: token ids, padded."""

    tokens: Tensor  # (batch, length)


@dataclass(frozen=True, kw_only=True)
class TranslationTask(Task):
    """Aligned files `train.en` and `train.de` (or .gz), a table with a column a language, or a data set."""

    name: str = "translation"
    metric: Metric = field(default_factory=lambda: metrics["bleu"])
    languages: Languages | None = None
    prefix: str = ""  # what the model wants before every source ("translate English to German: ")
    search: Search = field(default_factory=Search)
    most_apart: float = 4.0  # training pairs with one side so many times as long as the other are left out
    processor: Processor = field(default=None, repr=False)
    config: Config = field(default=None, repr=False)
    model_class: ClassVar[str] = "AutoModelForSeq2SeqLM"

    def row_kind(self) -> str:
        return self.metric.rows if is_translated(self.metric) else TEACHER_FORCED

    @property
    def searches(self) -> bool:
        return is_translated(self.metric)

    def settings(self) -> dict[str, object]:
        said = {**super().settings(), "languages": str(self.languages), "prefix": self.prefix}
        if not self.searches:
            return {**said, "by": "teacher forcing: the probability of the references, nothing is translated"}
        return {**said, "by": "beam search", "search": self.search.to_dict(), "signature": signature(self.metric.name)}

    def for_processor(self, processor: Processor, config: Config) -> Self:
        if not getattr(config, "is_encoder_decoder", False):
            raise DataError(
                f"The model is a {config.model_type}, which has no decoder that reads an encoder. Translation needs an "
                "encoder-decoder (Marian, M2M-100, BART, T5, …): train one with `headprune train-mt`."
            )
        task = replace(self, processor=processor, config=config)
        task._speak()
        task._check_tokenizer()
        return task

    def load(self, source: Source, split: str, processor: Processor, max_length: int) -> Examples:
        """Pairs as token ids. In training too long pairs are left out; elsewhere they are an error."""
        if self.languages is None:
            raise DataError("Which languages? Say source and target with --languages, as en-de.")
        pairs = read_pairs(source, split, self.languages)
        encoded = processor([self.prefix + text for text in pairs.sources], text_target=list(pairs.targets))
        sides = list(zip(encoded["input_ids"], encoded["labels"], strict=True))
        self._check_tokens(pairs, sides, processor)
        lengths = [(len(source), len(target)) for source, target in sides]
        rows = range(len(pairs))
        if split == "train":
            rows = within_length(lengths, max_length, self.most_apart)  # type: ignore[assignment]
            if not rows:
                raise DataError(f"Every pair of {pairs.name} is longer than {max_length} tokens: raise --max-length.")
        else:
            _check_lengths(pairs, lengths, max_length)
        features = [
            {"input_ids": sides[row][0], "labels": sides[row][1], REFERENCES: pairs.targets[row]} for row in rows
        ]
        return Examples(features, self._collator(processor), len(pairs) - len(features))

    def answer(self, model: nn.Module, inputs: Batch) -> Any:
        if not self.searches:
            return model(**inputs)
        asked = {name: value for name, value in inputs.items() if name not in ("labels", "decoder_input_ids")}
        return Translations(self.search.run(model, asked, _room(model.config), **self._forced()))

    def outcome(self, outputs: Outputs, batch: Batch) -> Tensor:
        if not self.searches:
            return torch.stack(token_labels(outputs, batch), dim=1)  # (batch, 2)
        rows = sentence_counts(self.metric.name, self.texts(outputs), batch[REFERENCES])
        return torch.from_numpy(rows)  # (batch, counts)

    def texts(self, outputs: Translations) -> list[str]:
        """Translations as text."""
        found = self.processor.batch_decode(
            outputs.tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return [text.strip() for text in found]

    def written(self, answers: Sequence[tuple[Any, Batch]], folder: Path) -> dict[str, Any]:
        """translations.txt, a line a sentence in the data's order, and the score in BLEU and chrF."""
        if not self.searches:
            return {}
        places = [place for _, batch in answers for place in batch[ROW].tolist()]
        texts = [text for outputs, _ in answers for text in self.texts(outputs)]
        references = [text for _, batch in answers for text in batch[REFERENCES]]
        order = sorted(range(len(places)), key=places.__getitem__)
        translated, wanted = [texts[i] for i in order], [references[i] for i in order]
        write_text(folder / "translations.txt", "".join(f"{' '.join(text.split())}\n" for text in translated))
        return {
            "also": {
                name: {
                    "score": corpus_score(name, sentence_counts(name, translated, wanted)),
                    "signature": signature(name),
                }
                for name in ("bleu", "chrf")
            }
        }

    def training_loss(self, smoothing: float) -> Callable[..., Tensor] | None:
        """Cross-entropy with a share of the target's weight spread over the vocabulary (Szegedy et al. 2016).

        Also without smoothing, because models' own losses are means of a batch, whatever the step has besides it."""

        def smoothed(outputs: Outputs, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
            logits = outputs["logits"].float().flatten(0, 1)  # (batch x length, vocabulary)
            total = F.cross_entropy(
                logits, labels.flatten(), ignore_index=IGNORED, label_smoothing=smoothing, reduction="sum"
            )
            return total / (num_items_in_batch if num_items_in_batch is not None else (labels != IGNORED).sum())

        return smoothed

    def _collator(self, processor: Processor) -> _Collator:
        start = self._forced().get("decoder_start_token_id", getattr(self.config, "decoder_start_token_id", None))
        if start is None:
            start = processor.bos_token_id if processor.bos_token_id is not None else processor.pad_token_id
        return _Collator(padding=int(processor.pad_token_id), start=int(start))

    def _speak(self) -> None:
        """Tokenizers for many languages have to be told which."""
        if self.languages is None or not hasattr(self.processor, "tgt_lang"):
            return
        for code in (self.languages.source, self.languages.target):
            if _language_token(self.processor, code) is None:
                known = [str(token).strip("_") for token in self.processor.all_special_tokens]
                raise DataError(
                    f"The tokenizer has no language '{code}'. {hint(code, known)} Name files and --languages by its "
                    "codes."
                )
        self.processor.src_lang, self.processor.tgt_lang = self.languages.source, self.languages.target

    def _forced(self) -> dict[str, Any]:
        """Models for many languages are told the target's: as the first token of the translation (M2M-100, mBART-50,
        NLLB), or as the token that the decoder starts from (mBART, whose targets end with it)."""
        if self.languages is None or not hasattr(self.processor, "tgt_lang"):
            return {}
        code = _language_token(self.processor, self.languages.target)
        target = self.processor(text_target="a")["input_ids"]
        if target[0] == code:
            return {"forced_bos_token_id": code}
        return {"decoder_start_token_id": code} if target[-1] == code else {}

    def _check_tokenizer(self) -> None:
        """Padding and the end of a sentence must mean the same to both, and targets must be encoded as targets."""
        sides: list[Any] = [getattr(self.processor, name, dict)() for name in ("get_src_vocab", "get_tgt_vocab")]
        if sides[0] != sides[1]:
            raise DataError(
                "The tokenizer has one dictionary for the source and another for the target, and no way to encode a "
                "target. Use a checkpoint with a joint dictionary."
            )
        for name in ("pad_token_id", "eos_token_id"):
            mine, theirs = getattr(self.processor, name, None), getattr(self.config, name, None)
            if mine is None:
                raise DataError(f"The tokenizer has no {name.removesuffix('_id')}; translation needs one.")
            if isinstance(theirs, int) and mine != theirs:
                raise DataError(
                    f"The tokenizer's {name} is {mine}, the model's {theirs}: they do not belong together. Save the "
                    "tokenizer that the model was trained with into its folder."
                )

    def _check_tokens(self, pairs: Pairs, sides: Sequence[tuple[list[int], list[int]]], processor: Processor) -> None:
        """Every token must have a vector, and most must be known."""
        sizes = _vocabularies(self.config)
        unknown, total, first = 0, 0, None
        for row, both in enumerate(sides):
            for tokens, size in zip(both, sizes, strict=True):
                if size is not None and max(tokens) >= size:
                    raise DataError(
                        f"{pairs.place(row)}: the tokenizer gives token {max(tokens)}, the model has vectors for "
                        f"{size}. Use the tokenizer that the model was trained with."
                    )
                found = tokens.count(processor.unk_token_id) if processor.unk_token_id is not None else 0
                unknown, total = unknown + found, total + len(tokens)
                first = row if first is None and found else first
        if first is not None and unknown > total / 4:
            raise DataError(
                f"{pairs.place(first)}: unknown to the tokenizer, as {unknown} of the {total} tokens of {pairs.name} "
                "are. It was made for another language or script."
            )


def _language_token(processor: Processor, code: str) -> int | None:
    """The token that stands for a language; None if the tokenizer does not know it."""
    try:
        token = (
            processor.get_lang_id(code) if hasattr(processor, "get_lang_id") else processor.convert_tokens_to_ids(code)
        )
    except KeyError:
        return None
    return token if token in processor.all_special_ids and token != processor.unk_token_id else None


def _check_lengths(pairs: Pairs, lengths: Sequence[tuple[int, int]], most: int) -> None:
    for row, both in enumerate(lengths):
        for side, tokens in zip(("source", "target"), both, strict=True):
            if tokens > most:
                raise DataError(
                    f"{pairs.place(row)}: the {side} has {tokens} tokens, and {most} is the most, by --max-length or "
                    "by the positions that the model has. Split the sentence, raise --max-length, or take a model "
                    "(with train-mt, a --preset) that has more positions."
                )


def _vocabularies(config: Config) -> tuple[int | None, int | None]:
    """How many tokens source and target can have, by the names that configs have for it."""
    size = getattr(config, "vocab_size", None)
    source = getattr(config, "src_vocab_size", size)
    target = getattr(config, "tgt_vocab_size", getattr(config, "decoder_vocab_size", None))
    return source, target if target is not None else size


def _room(config: Config) -> int:
    """The most tokens that the decoder can write."""
    limits = [getattr(config, name, None) for name in ("max_position_embeddings", "n_positions")]
    return min((limit - 2 for limit in limits if isinstance(limit, int)), default=512)


@dataclass(frozen=True)
class _Collator:
    """Pads, and tells the decoder what came before each target token: the model's start token, then the target.

    Every model is told, because not every one works it out from the labels (FSMT would read the source instead).
    """

    padding: int
    start: int

    def __call__(self, rows: list[Features]) -> dict[str, Any]:
        sources, targets = [list(row["input_ids"]) for row in rows], [list(row["labels"]) for row in rows]
        return {
            "input_ids": _padded(sources, self.padding),
            "attention_mask": _padded([[1] * len(source) for source in sources], 0),
            "labels": _padded(targets, IGNORED),
            "decoder_input_ids": _padded([[self.start, *target[:-1]] for target in targets], self.padding),
            REFERENCES: [row[REFERENCES] for row in rows],
        }


def _padded(rows: Sequence[Sequence[int]], fill: int) -> Tensor:
    width = max(len(row) for row in rows)
    return torch.tensor([[*row, *[fill] * (width - len(row))] for row in rows])  # (batch, length)
