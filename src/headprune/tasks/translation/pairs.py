"""Parallel text: two aligned files, a table, or a data set; every error names its line."""

from __future__ import annotations

import contextlib
import gzip
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from headprune.errors import DataError
from headprune.tasks.tables import SPLITS, Source, Table

PAIRED = "translation"  # the column in which data sets on the hub keep both languages


@dataclass(frozen=True)
class Languages:
    """Source and target. They are the endings of aligned files, or the names of columns: `en-de`."""

    source: str
    target: str

    @classmethod
    def parse(cls, text: str) -> Languages:
        parts = [part.strip() for part in text.split("-")]
        if len(parts) != 2 or not all(parts) or parts[0] == parts[1]:
            raise DataError(f"The languages are '{text}'; expected source and target with - between them, as en-de.")
        return cls(*parts)

    def __str__(self) -> str:
        return f"{self.source}-{self.target}"


@dataclass(frozen=True)
class Pairs:
    """Sentences and their translations, and where each stands."""

    name: str
    sources: Sequence[str]
    targets: Sequence[str]
    first_line: int = 1

    def __len__(self) -> int:
        return len(self.sources)

    def place(self, row: int) -> str:
        return f"{self.name}, line {self.first_line + row}"


def read_pairs(source: Source, split: str, languages: Languages) -> Pairs:
    """The pairs of a split, none of them empty."""
    names = SPLITS.get(split, (split,))
    files = _aligned_files(source, names, languages)
    pairs = _from_files(*files) if files is not None else _from_table(source, names, languages)
    for row, sides in enumerate(zip(pairs.sources, pairs.targets, strict=True)):
        for side, language in zip(sides, (languages.source, languages.target), strict=True):
            if not side.strip():
                raise DataError(f"{pairs.place(row)}: the {language} side is empty. Remove the line on both sides.")
    if not pairs:
        raise DataError(f"{pairs.name} has no sentences. Expected one a line.")
    return pairs


def _aligned_files(source: Source, names: Sequence[str], languages: Languages) -> tuple[Path, Path] | None:
    if source.folder is None:
        return None
    alone: list[tuple[Path, str]] = []
    for name in names:  # both sides under one name: dev.en beside val.de are not aligned
        found = {}
        for language in (languages.source, languages.target):
            with contextlib.suppress(DataError):
                found[language] = source.file((name,), (f".{language}",))
        if len(found) == 2:
            return found[languages.source], found[languages.target]
        other = {languages.source: languages.target, languages.target: languages.source}
        alone += [(path, other[language]) for language, path in found.items()]
    for path, lacking in alone:
        raise DataError(f"'{path}' has no aligned file ending in .{lacking} beside it. Both sides are needed.")
    return None


def _from_files(first: Path, second: Path) -> Pairs:
    sources, targets = _lines(first), _lines(second)
    if len(sources) != len(targets):
        both = min(len(sources), len(targets))
        raise DataError(
            f"'{first}' has {len(sources)} lines, '{second}' {len(targets)}: line {both + 1} has no partner. Aligned "
            "files have one sentence a line on both sides."
        )
    return Pairs(first.name, sources, targets)


def _lines(path: Path) -> list[str]:
    """Lines end with a line feed and nothing else: Unicode knows more line ends, which are part of a sentence."""
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"'{path}' cannot be read: {error}. Expected text, or gzip of it for .gz.") from error
    lines = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    if lines and not lines[-1]:
        lines.pop()
    texts = []
    for number, line in enumerate(lines, 1):
        try:
            texts.append(line.decode("utf-8").strip())
        except UnicodeDecodeError as error:
            raise DataError(
                f"{path.name}, line {number}: not UTF-8 ({error.reason} at byte {error.start} of the line). Convert "
                "the file: iconv -f latin1 -t utf-8."
            ) from error
    return texts


def _from_table(source: Source, names: Sequence[str], languages: Languages) -> Pairs:
    wanted = (languages.source, languages.target)
    try:
        table = source.table(names, (*wanted, PAIRED))
    except DataError as error:
        endings = " and ".join(f"{names[0]}.{language}" for language in wanted)
        raise DataError(f"{error} Aligned files would be {endings}.") from error
    first_line = 1 if table.names is None else 2
    if str(table.path).removesuffix(".gz").endswith((".jsonl", ".json")):
        first_line = 1
    if table.names is not None and PAIRED in table.names and not set(wanted) <= set(table.names):
        sides = _inside(table, wanted, first_line)
    else:
        sides = [[str(text if text is not None else "") for text in table.column(name, place)]
                 for place, name in enumerate(wanted)]  # fmt: skip
    return Pairs(Path(table.path).name, sides[0], sides[1], first_line)


def _inside(table: Table, wanted: Sequence[str], first_line: int) -> list[list[str]]:
    """Both languages in one column: {"en": …, "de": …}."""
    sides: list[list[str]] = [[], []]
    for row, both in enumerate(table.column(PAIRED)):
        if not isinstance(both, Mapping) or not set(wanted) <= set(both):
            found = ", ".join(sorted(map(str, both))) if isinstance(both, Mapping) else type(both).__name__
            raise DataError(
                f"{table.path}, line {first_line + row}: found {found}; expected {' and '.join(wanted)}. Name the "
                "languages with --languages."
            )
        for side, language in zip(sides, wanted, strict=True):
            side.append(str(both[language]))
    return sides


def within_length(lengths: Sequence[tuple[int, int]], most: int, ratio: float) -> list[int]:
    """Rows with at most so many tokens a side, and no side `ratio` times as long as the other."""
    return [
        row
        for row, (source, target) in enumerate(lengths)
        if max(source, target) <= most and max(source, target) <= ratio * max(1, min(source, target))
    ]
