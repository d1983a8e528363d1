"""Vocabularies of words and of characters, as tokenizers of transformers, and quick ways to number long texts."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headprune.errors import DataError
from headprune.files import write_text
from headprune.tasks.text.corpus import Unit
from headprune.types import Tokenizer

END, UNKNOWN = "<eos>", "<unk>"  # END closes every line of words
NOTE = "symbols.json"  # what the vocabulary was made from
Tokens = NDArray[np.int32]


def make_symbols(text: str, unit: Unit, size: int | None = None) -> Any:
    """A tokenizer of all symbols in a text, the most frequent first. With `size`, of so many at most; all others, and
    those that the text does not have, are `<unk>`."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    counts = Counter(_words(text)) if unit == "words" else Counter(_shown(text, unit))
    if not counts:
        raise DataError("The training text is empty: there are no symbols to learn.")
    counts.pop(END, None)
    special = [END] if unit == "words" else []
    if size is not None and UNKNOWN not in counts:
        special.append(UNKNOWN)
    if size is not None and size <= len(special):
        raise DataError(f"A vocabulary of {size} leaves no room for {unit} besides {', '.join(special)}.")
    room = None if size is None else size - len(special)
    vocabulary = {symbol: number for number, symbol in enumerate([*special, *_frequent(counts, room)])}
    unknown = UNKNOWN if UNKNOWN in vocabulary else None
    raw = Tokenizer(models.WordLevel(vocabulary, unk_token=unknown or ""))
    one = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    if unit == "words":
        raw.normalizer = normalizers.Replace("\n", f" {END} ")
        raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    elif unit == "bytes":
        raw.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False), one]
        )
        raw.decoder = decoders.ByteLevel()
    else:
        raw.pre_tokenizer, raw.decoder = one, decoders.Fuse()
    if unit == "letters":
        raw.normalizer = normalizers.Sequence([normalizers.Lowercase(), normalizers.Replace(Regex("[^a-z]+"), " ")])
    names = {"eos_token": END if unit == "words" else None, "unk_token": unknown}
    return PreTrainedTokenizerFast(
        tokenizer_object=raw, clean_up_tokenization_spaces=False, headprune_unit=unit,
        **{name: token for name, token in names.items() if token is not None},
    )  # fmt: skip


def has_symbols(tokenizer: Tokenizer) -> bool:
    """Whether a tokenizer is one of these."""
    return "headprune_unit" in getattr(tokenizer, "init_kwargs", {})


def unit_of(tokenizer: Tokenizer) -> Unit:
    """What a tokenizer's tokens are."""
    if not has_symbols(tokenizer):
        raise DataError(
            "This tokenizer has subwords, not words or characters. Text in streams is for models of `headprune "
            "train-lm`; for others use --task causal-lm."
        )
    unit: Unit = tokenizer.init_kwargs["headprune_unit"]
    return unit


def numbered(text: str, tokenizer: Tokenizer, where: str) -> Tokens:
    """The whole text as token numbers. A symbol that the vocabulary lacks is `<unk>` if it has that, else an error."""
    unit, vocabulary = unit_of(tokenizer), tokenizer.get_vocab()
    unknown = vocabulary.get(UNKNOWN)
    if unit == "words":
        return _numbered_words(text, vocabulary, unknown, where)
    codes = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    if not len(codes):
        return np.zeros(0, dtype=np.int32)
    table = np.full(int(codes.max()) + 1, -1 if unknown is None else unknown, dtype=np.int32)
    for code in np.unique(codes).tolist():
        table[code] = vocabulary.get(_shown(chr(code), unit), table[code])
    found: Tokens = table[codes]
    if found.size and int(found.min()) < 0:
        place = int(np.argmax(found < 0))
        line = text.count("\n", 0, place) + 1
        raise DataError(_unseen(repr(text[place]), where, line, len(vocabulary)))
    return found


def symbols_of(folder: Path, text: str, unit: Unit, size: int | None) -> Any:
    """The tokenizer in `folder` if it was made from the same text in the same way, else a new one, saved there."""
    from transformers import PreTrainedTokenizerFast

    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    note = json.dumps({"unit": unit, "size": size, "made_from": digest})
    known = folder / NOTE
    if known.is_file() and known.read_bytes() == note.encode():
        return PreTrainedTokenizerFast.from_pretrained(folder)
    tokenizer = make_symbols(text, unit, size)
    tokenizer.save_pretrained(folder)
    write_text(known, note)
    return tokenizer


def _numbered_words(text: str, vocabulary: dict[str, int], unknown: int | None, where: str) -> Tokens:
    found: list[int] = []
    end = vocabulary[END]
    for number, line in enumerate(_lines(text), start=1):
        for word in line.split():
            token = vocabulary.get(word, unknown)
            if token is None:
                raise DataError(_unseen(f"'{word}'", where, number, len(vocabulary)))
            found.append(token)
        found.append(end)
    return np.asarray(found, dtype=np.int32)


def _unseen(symbol: str, where: str, line: int, known: int) -> str:
    return (
        f"{where}, line {line}: {symbol} is not among the {known} symbols of the model. Remove it from the text, or "
        "train with --vocabulary N, which makes rare and unknown symbols <unk>."
    )


def _words(text: str) -> list[str]:
    return text.split()


def _lines(text: str) -> Sequence[str]:
    """Lines as files have them: a last newline begins no further line."""
    lines = text.split("\n")
    return lines[:-1] if lines and not lines[-1] else lines


def _frequent(counts: Counter[str], room: int | None) -> list[str]:
    """By falling frequency, equal ones by their own order: the same for the same text."""
    ordered = sorted(counts, key=lambda symbol: (-counts[symbol], symbol))
    if room is None or len(ordered) <= room:
        return ordered
    kept = ordered[:room]
    if UNKNOWN in counts and UNKNOWN not in kept:
        kept[-1] = UNKNOWN
    return kept


def _shown(text: str, unit: Unit) -> str:
    """Bytes under the printable characters that tokenizers use for them."""
    return text.translate(_BYTES) if unit == "bytes" else text


def _printable_bytes() -> dict[int, int]:
    """Bytes that are printable stay; the others are moved behind 255, in order."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    moved = [byte for byte in range(256) if byte not in plain]
    return {**{byte: byte for byte in plain}, **{byte: 256 + place for place, byte in enumerate(moved)}}


_BYTES = _printable_bytes()
