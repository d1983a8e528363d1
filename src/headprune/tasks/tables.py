"""Rows of a CSV, TSV, JSON-lines or CoNLL-U file, plain or gzipped, or of a data set of the `datasets` library."""

from __future__ import annotations

import csv
import gzip
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headprune.errors import DataError, MissingExtraError
from headprune.files import loads
from headprune.registry import hint

KINDS = (".tsv", ".csv", ".jsonl", ".json", ".conllu")


class Table:
    """Rows with named or numbered columns."""

    def __init__(
        self,
        path: Path | str,
        rows: Sequence[Sequence[object]],
        names: Sequence[str] | None,
        classes: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.path, self.rows, self.names = path, rows, list(names) if names is not None else None
        self.classes = dict(classes or {})  # column -> names of its numbered classes, where the data set has them

    def classes_of(self, *wanted: str | int) -> tuple[str, ...]:
        """The names of the classes of the first of the wanted columns, if they are known."""
        return next((tuple(self.classes[name]) for name in wanted if name in self.classes), ())

    def column(self, *wanted: str | int) -> list[Any]:
        """The first of the wanted columns that the file has: names for files with a header, numbers for others."""
        for name in wanted:
            place = self._place(name)
            if place is not None:
                return self._values(place)
        names = [str(name) for name in wanted]
        known = self.names or [f"column {i}" for i in range(len(self.rows[0]))]
        raise DataError(f"{self.path} has no column {' or '.join(names)}. {hint(names[0], known)}")

    def _place(self, name: str | int) -> int | None:
        if isinstance(name, int):
            return name if self.names is None and name < len(self.rows[0]) else None
        return self.names.index(name) if self.names is not None and name in self.names else None

    def _values(self, place: int) -> list[Any]:
        for number, row in enumerate(self.rows, 1 if self.names is None else 2):
            if len(row) <= place:
                raise DataError(f"{self.path}, line {number}: found {len(row)} columns, expected at least {place + 1}.")
        return [row[place] for row in self.rows]


def read_table(path: Path, known_columns: Sequence[str] = ()) -> Table:
    """Read a file. Its first line is a header if it holds a known column name (always for CSV)."""
    try:
        opener = gzip.open if path.suffix == ".gz" else open
        with opener(path, "rt", encoding="utf-8-sig", newline="") as file:
            kind = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
            rows, names = _parse(file, kind if kind in KINDS else _kind_of(file), path)
    except (OSError, UnicodeDecodeError, EOFError, zlib.error, csv.Error) as error:
        raise DataError(f"'{path}' cannot be read: {error}. Expected a text file ({', '.join(KINDS)}).") from error
    if names is None and rows and set(map(str, rows[0])) & set(known_columns):
        names, rows = [str(name) for name in rows[0]], rows[1:]
    if not rows:
        raise DataError(f"'{path}' has no rows. Expected one example a line.")
    return Table(path, rows, names)


def _parse(file: Any, kind: str, path: Path) -> tuple[list[Any], list[str] | None]:
    if kind == ".csv":
        rows = [row for row in csv.reader(file) if row]
        return rows[1:], rows[0] if rows else None
    if kind == ".tsv":
        return [line.rstrip("\r\n").split("\t") for line in file if line.strip()], None
    if kind in (".jsonl", ".json"):
        return _json_rows(file, path)
    if kind == ".conllu":
        return _sentences(file, path)
    raise DataError(
        f"'{path}' has an unknown kind of file name, and its first line neither tabs, commas nor a JSON object. "
        f"Expected {', '.join(KINDS)} (or .gz of these)."
    )


def _kind_of(file: Any) -> str:
    """What a file of any name holds, by its first line."""
    first = next((line for line in file if line.strip()), "")
    file.seek(0)
    marks = {"{": ".jsonl"} if first.lstrip().startswith("{") else {"\t": ".tsv", ",": ".csv"}
    return next((kind for mark, kind in marks.items() if mark in first), "")


def _json_rows(file: Any, path: Path) -> tuple[list[Any], list[str]]:
    rows = []
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        try:
            row = loads(line)
        except ValueError as error:
            raise DataError(f"{path}, line {number}: not JSON ({error}). Expected one object a line.") from error
        if _HALF.search(line) and _has_half(row):
            raise DataError(f"{path}, line {number}: half a surrogate pair (\\ud800 to \\udfff) is no text.")
        if not isinstance(row, Mapping):
            raise DataError(f"{path}, line {number}: found {type(row).__name__}, expected an object.")
        rows.append(row)
    names = list(dict.fromkeys(name for row in rows for name in row))
    return [[row.get(name) for name in names] for row in rows], names


_HALF = re.compile(r"\\u[dD][89a-fA-F]")  # how JSON writes it


def _has_half(row: object) -> bool:
    """Whether a text is no text: tokenizers and files refuse it."""
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


CONLLU = ("id", "tokens", "lemma", "upos", "xpos", "feats", "head", "deprel")


def _sentences(file: Any, path: Path) -> tuple[list[Any], list[str]]:
    """One row a sentence, each column a list with one entry a word; ranges (1-2) and empty words (1.1) are left out."""
    rows: list[list[list[str]]] = []
    words: list[list[str]] = []
    for number, line in enumerate([*file, ""], 1):
        text = line.rstrip("\r\n")
        if not text and words:
            rows.append([[word[place] for word in words] for place in range(len(CONLLU))])
            words = []
        if not text or text.startswith("#"):
            continue
        word = text.split("\t")
        if len(word) < len(CONLLU):
            raise DataError(f"{path}, line {number}: found {len(word)} columns, expected 10 (CoNLL-U).")
        if word[0].isdecimal():
            words.append(word)
    return rows, list(CONLLU)


# What the parts of a data set are called here and there.
SPLITS = {"train": ("train",), "dev": ("dev", "val", "valid", "validation"), "test": ("test",)}


@dataclass(frozen=True)
class Source:
    """A folder with one file a split, a file for each split, the name of a data set, or files of plain text."""

    folder: Path | None = None
    dataset: str | None = None  # NAME or NAME:CONFIG, as `datasets.load_dataset` takes them
    files: tuple[Path, ...] = ()
    splits: Mapping[str, Path] = field(default_factory=dict)  # a file for each, called as somebody likes

    def __str__(self) -> str:
        if self.files:
            return " and ".join(f"'{path}'" for path in self.files)
        if self.splits:
            return " and ".join(f"'{path}'" for path in self.splits.values())
        return f"the data set {self.dataset}" if self.dataset is not None else f"'{self.folder}'"

    def table(self, names: Sequence[str], columns: Sequence[str] = ()) -> Table:
        """The rows of a split, which is called by one of `names`."""
        if self.dataset is not None:
            return _dataset_table(self.dataset, names)
        return read_table(self.file(names, KINDS), columns)

    def file(self, names: Sequence[str], kinds: Sequence[str]) -> Path:
        """The first file that there is."""
        if self.splits:
            if names[0] not in self.splits:
                given = ", ".join(f"--{name}-file" for name in self.splits)
                raise DataError(f"No --{names[0]}-file was given, beside {given}: where is that part of the data?")
            return self.splits[names[0]]
        if self.folder is None or self.folder.is_file():
            raise DataError(f"{self} is not a folder; expected one with a file called {names[0]}.")
        for name in names:
            for kind in (*kinds, *(f"{kind}.gz" for kind in kinds)):
                if (self.folder / f"{name}{kind}").is_file():
                    return self.folder / f"{name}{kind}"
        raise DataError(
            f"No file for the split '{names[0]}' in '{self.folder}'. Expected one of {', '.join(names)} as "
            f"{', '.join(kinds)}. Give the folder with --data-dir or HEADPRUNE_DATA."
        )


def _dataset_table(dataset: str, names: Sequence[str]) -> Table:
    try:
        import datasets
    except ImportError as error:
        raise MissingExtraError("Data sets by name need datasets: pip install 'headprune[tasks]'.") from error
    name, _, config = dataset.partition(":") if not Path(dataset).exists() else (dataset, "", "")
    try:
        parts: Any = datasets.load_dataset(name, config or None)
    except Exception as error:  # whatever the network, the hub or a damaged folder brings
        raise DataError(f"The data set '{dataset}' cannot be loaded: {error}") from error
    for split in names:
        if split in parts:
            rows = parts[split]
            if not len(rows):
                raise DataError(f"The split '{split}' of the data set '{dataset}' has no rows.")
            columns = list(rows.column_names)
            classes = {column: names for column in columns if (names := _class_names(rows.features[column]))}
            return Table(f"{dataset} {split}", [[row[column] for column in columns] for row in rows], columns, classes)
    raise DataError(f"The data set '{dataset}' has no split {' or '.join(names)}. {hint(names[0], parts)}")


def _class_names(feature: object) -> list[str]:
    """The names behind numbered classes, or lists of them."""
    inner = getattr(feature, "feature", feature)  # of a list
    return list(getattr(inner, "names", None) or [])
