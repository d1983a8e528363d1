"""The parts of a corpus: a file a part, or one file that is cut 90 / 5 / 5."""

from __future__ import annotations

import gzip
import re
import zlib
from pathlib import Path
from typing import Literal, get_args

from headprune.errors import DataError
from headprune.tasks.tables import SPLITS, Source

Unit = Literal["words", "characters", "letters", "bytes"]
"""What a token is. `letters` are the 27 symbols of Text8: lower case, and one space for whatever is not a to z."""

_KINDS = (".txt", ".tokens", ".raw", "")
_ENDS = {"train": (0.0, 0.9), "dev": (0.9, 0.95), "test": (0.95, 1.0)}


def read_part(source: Source, split: str, unit: Unit) -> str:
    """The text of a part, ready to be cut into symbols."""
    if unit not in get_args(Unit):
        raise DataError(f"The unit is '{unit}'; expected {', '.join(get_args(Unit))}.")
    if source.folder is None:
        raise DataError(f"{source} is not a folder or a file of text: give one with --data-dir.")
    if source.folder.is_file():
        return _prepared(_cut(source.folder, split, unit), unit)
    names = [f"{before}{name}" for name in SPLITS.get(split, (split,)) for before in ("", "wiki.")]
    return _prepared(_read(source.file(names, _KINDS), unit), unit)


def _cut(path: Path, split: str, unit: Unit) -> str:
    """The first 90 % train, then 5 % dev and 5 % test, as usual for Text8 and enwik8; words at the end of a line, or of
    a word where lines are long."""
    if split not in _ENDS:
        raise DataError(f"'{path}' is one file, cut into train, dev and test; it has no part '{split}'.")
    text = _read(path, unit)
    start, end = (_place(text, share, unit) for share in _ENDS[split])
    return text[start:end]


def _place(text: str, share: float, unit: Unit) -> int:
    place = round(share * len(text))
    if unit != "words" or place in (0, len(text)):
        return place
    line = text.find("\n", place)
    if 0 <= line < place + len(text) // 100:
        return line + 1
    space = re.compile(r"\s").search(text, place)  # a text of few lines, as Text8 is
    return len(text) if space is None else space.end()


def _read(path: Path, unit: Unit) -> str:
    """Bytes are read as the characters of the same numbers."""
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rb") as file:
            content = bytes(file.read())
        return content.decode("latin-1" if unit == "bytes" else "utf-8")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise DataError(
            f"'{path}', line {line}: not UTF-8 ({error.reason}). Convert it, or read it with --by bytes."
        ) from error
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"'{path}' cannot be read: {error}.") from error


def _prepared(text: str, unit: Unit) -> str:
    return re.sub("[^a-z]+", " ", text.lower()) if unit == "letters" else text
