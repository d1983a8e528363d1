"""Sentences with dependency trees: gold ones from CoNLL-U, or parsed by spaCy; and their words as tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from headprune.errors import DataError, MissingExtraError
from headprune.tasks.tables import read_table
from headprune.types import Tokenizer

SAME = {"dobj": "obj"}  # what other schemes call the relations of Universal Dependencies


@dataclass(frozen=True)
class Sentence:
    """Words, and for each its head (None: the root) and the relation to it."""

    words: tuple[str, ...]
    heads: tuple[int | None, ...]
    relations: tuple[str, ...]

    def pairs(self, relation: str) -> list[tuple[int, int]]:
        """Dependent and head of every word with the relation; subtypes (nsubj:pass) count."""
        return [
            (place, head)
            for place, (head, name) in enumerate(zip(self.heads, self.relations, strict=True))
            if head is not None and name.partition(":")[0] == relation
        ]


def read_sentences(path: Path) -> list[Sentence]:
    """The sentences of a CoNLL-U file."""
    if path.suffix.removesuffix(".gz") not in (".conllu", "") and ".conllu" not in path.name:
        raise DataError(f"'{path}' is not a .conllu file. Give gold trees, or plain text with --spacy.")
    table = read_table(path)
    rows = zip(table.column("tokens"), table.column("head"), table.column("deprel"), strict=True)
    sentences = []
    for number, (words, heads, relations) in enumerate(rows, 1):
        try:
            places = tuple(int(head) - 1 if int(head) else None for head in heads)
        except ValueError as error:
            raise DataError(f"{path}, sentence {number}: a head is not a number ({error}).") from error
        if any(place is not None and not 0 <= place < len(words) for place in places):
            raise DataError(f"{path}, sentence {number}: a head points outside the sentence of {len(words)} words.")
        sentences.append(Sentence(tuple(words), places, tuple(SAME.get(name, name) for name in relations)))
    return sentences


def parsed_sentences(path: Path, parser: str) -> list[Sentence]:
    """The sentences of a text file, one or more a line, parsed by a spaCy model (a name or a folder)."""
    try:
        import spacy
    except ImportError as error:
        raise MissingExtraError("Parsing text needs spaCy and a model of it: pip install spacy.") from error
    try:
        pipeline = spacy.load(parser)
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"'{path}' cannot be parsed with '{parser}': {error}.") from error
    sentences = []
    for document in pipeline.pipe(lines):
        for part in document.sents:
            heads = tuple(None if word.head.i == word.i else word.head.i - part.start for word in part)
            names = tuple(SAME.get(word.dep_, word.dep_) for word in part)
            sentences.append(Sentence(tuple(word.text for word in part), heads, names))
    return sentences


@dataclass(frozen=True)
class Encoded:
    """A sentence as the model sees it: which word each token belongs to (None: a special token)."""

    sentence: Sentence
    tokens: tuple[int, ...]
    word_of_token: tuple[int | None, ...]

    def pooling(self) -> tuple[Tensor, Tensor]:
        """From maps between tokens to maps between words: queries are averaged, keys are added up.

        (words, tokens) each. The attention *from* a word is the mean over its pieces, the attention *to* a word the
        sum over its pieces, so that a word's attention still sums to one (with what special tokens get).
        """
        keys = torch.zeros(len(self.sentence.words), len(self.tokens))
        for token, word in enumerate(self.word_of_token):
            if word is not None:
                keys[word, token] = 1.0
        return keys / keys.sum(1, keepdim=True).clamp_min(1), keys


def encoded(sentences: Sequence[Sentence], tokenizer: Tokenizer, max_length: int) -> Iterator[Encoded]:
    """Sentences whose words all fit; longer ones are left out, since their trees would be cut."""
    for sentence in sentences:
        made = tokenizer([list(sentence.words)], is_split_into_words=True)
        tokens, words = made["input_ids"][0], made.word_ids(0)
        if len(tokens) <= max_length and set(range(len(sentence.words))) <= set(words):
            yield Encoded(sentence, tuple(tokens), tuple(words))
