"""Targets for data files: tables, sentences, parallel text, running text, vocabularies, images."""

from __future__ import annotations

import contextlib
import gzip
from functools import cache, partial
from pathlib import Path
from typing import Any

from tools.fuzz.targets import TARGETS, Target, target

from headprune.errors import HeadpruneError
from headprune.lab.analysis.functions.sentences import encoded, read_sentences
from headprune.tasks.classification import GLUE, TextTask
from headprune.tasks.encoded import EncodedTask
from headprune.tasks.images import ImageTask
from headprune.tasks.language import LanguageTask
from headprune.tasks.metrics import metrics
from headprune.tasks.questions import QuestionTask
from headprune.tasks.tables import Source, read_table
from headprune.tasks.tags import TagTask
from headprune.tasks.task import Labels
from headprune.tasks.text.corpus import read_part
from headprune.tasks.text.symbols import make_symbols, numbered, symbols_of
from headprune.tasks.translation.pairs import Languages, read_pairs


@cache
def tokenizer() -> Any:
    """A small one that knows letters, of the kind that real models have."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = ["[PAD]", "[MASK]", "[UNK]", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    raw = Tokenizer(models.BPE({letter: n for n, letter in enumerate(alphabet)}, [], unk_token="[UNK]"))
    raw.pre_tokenizer, raw.decoder = pre_tokenizers.ByteLevel(add_prefix_space=True), decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token="[PAD]", mask_token="[MASK]", unk_token="[UNK]", model_max_length=64
    )


def _batch(examples: Any) -> object:
    """The first batch: what a loader promised must fit together."""
    return next(iter(examples.batches(8)))


def _table(data: bytes, folder: Path, ending: str) -> object:
    """As a classification, by names and by numbers of columns, with classes that are known and that are learned."""
    path = folder / f"train{ending}"
    path.write_bytes(data)
    read_table(path)
    learned = TextTask(name="mine", metric=metrics["accuracy"], first=("sentence", 0), label=("label", 1),
                       labels=Labels(0))  # fmt: skip
    for task in (GLUE["sst2"], GLUE["stsb"], learned):
        try:
            known = task.learned_from(Source(folder))
            examples = known.load(Source(folder), "train", tokenizer(), 16)
            known.check_training(examples)
            _batch(examples)
        except HeadpruneError:
            continue
    return None


for _ending, _kind in ((".csv", "text"), (".tsv", "text"), (".jsonl", "json")):
    TARGETS[f"table{_ending.replace('.', '-')}"] = Target(partial(_table, ending=_ending), _kind, 2, ending=_ending)
TARGETS["table-gz"] = Target(partial(_table, ending=".tsv.gz"), "bytes", ending=".tsv.gz")


@target("text", ending=".conllu")
def conllu(data: bytes, folder: Path) -> object:
    (folder / "train.conllu").write_bytes(data)
    with contextlib.suppress(HeadpruneError):
        list(encoded(read_sentences(folder / "train.conllu"), tokenizer(), 64))
    task = TagTask(tags=("upos",)).learned_from(Source(folder))
    return _batch(task.load(Source(folder), "train", tokenizer(), 64))


@target("json", ending=".jsonl")
def tags(data: bytes, folder: Path) -> object:
    (folder / "train.jsonl").write_bytes(data)
    task = TagTask().learned_from(Source(folder))
    return task.model_options(), _batch(task.load(Source(folder), "train", tokenizer(), 64))


@target("json", ending=".jsonl")
def questions(data: bytes, folder: Path) -> object:
    (folder / "train.jsonl").write_bytes(data)
    return _batch(QuestionTask().load(Source(folder), "train", tokenizer(), 64))


@target("json", ending=".jsonl")
def encoded_rows(data: bytes, folder: Path) -> object:
    (folder / "train.jsonl").write_bytes(data)
    return _batch(EncodedTask().load(Source(folder), "train", None, 64))


@target("text", ending=".en")
def parallel_text(data: bytes, folder: Path) -> object:
    """Both sides in one input, a blank line between them."""
    first, _, second = data.partition(b"\n\n")
    (folder / "train.en").write_bytes(first)
    (folder / "train.de").write_bytes(second)
    return read_pairs(Source(folder), "train", Languages("en", "de"))


@target("bytes", ending=".gz")
def parallel_gz(data: bytes, folder: Path) -> object:
    (folder / "train.en.gz").write_bytes(data)
    (folder / "train.de.gz").write_bytes(gzip.compress(b"eins\nzwei\n"))
    return read_pairs(Source(folder), "train", Languages("en", "de"))


@target("json", ending=".jsonl")
def parallel_table(data: bytes, folder: Path) -> object:
    (folder / "train.jsonl").write_bytes(data)
    return read_pairs(Source(folder), "train", Languages("en", "de"))


@target("text", ending=".txt")
def running_text(data: bytes, folder: Path) -> object:
    """A text is cut into parts, and a vocabulary is made from it; the note of an earlier one is beside it."""
    path = folder / "corpus.txt"
    path.write_bytes(data)
    LanguageTask().tokens(_as_folder(folder, data), "train", tokenizer())
    for unit in ("words", "characters", "letters", "bytes"):
        for split in ("train", "dev", "test"):
            try:
                text = read_part(Source(path), split, unit)
                numbered(text, make_symbols(text, unit, 20), "here")
            except HeadpruneError:
                continue
    return None


def _as_folder(folder: Path, data: bytes) -> Source:
    inner = folder / "parts"
    inner.mkdir()
    (inner / "train.txt").write_bytes(data)
    return Source(inner)


@target("bytes", ending=".gz")
def running_gz(data: bytes, folder: Path) -> object:
    path = folder / "corpus.txt.gz"
    path.write_bytes(data)
    with contextlib.suppress(HeadpruneError):
        read_part(Source(path), "train", "characters")
    (folder / "train.txt.gz").write_bytes(data)
    return LanguageTask().tokens(Source(folder), "train", tokenizer())


@target("json", share=0.2)
def vocabulary_note(data: bytes, folder: Path) -> object:
    """symbols.json: whether a vocabulary in a folder was made from the same text."""
    (folder / "symbols.json").write_bytes(data)
    return symbols_of(folder, "a text\nof words\n", "words", None)


@target("tree", share=0.3)
def vocabulary(data: bytes, folder: Path) -> object:
    """A vocabulary is read by transformers; which unit it has and what it lacks is ours to check."""
    from transformers import PreTrainedTokenizerFast

    made = make_symbols("a text\nof words\n", "words")
    made.save_pretrained(folder)
    (folder / "tokenizer_config.json").write_bytes(data)
    try:
        found = PreTrainedTokenizerFast.from_pretrained(folder)
    except Exception:  # what transformers refuses does not reach us
        return None
    return numbered("a text\nof words\n", found, "here")


@target("bytes", share=0.5, ending=".png")
def image(data: bytes, folder: Path) -> object:
    (folder / "train" / "cat").mkdir(parents=True)
    (folder / "train" / "cat" / "one.png").write_bytes(data)
    task = ImageTask().learned_from(Source(folder))
    return _batch(task.load(Source(folder), "train", _pixels, 0))


def _pixels(images: list[Any], return_tensors: str) -> dict[str, Any]:
    return {"pixel_values": [one.size for one in images]}
