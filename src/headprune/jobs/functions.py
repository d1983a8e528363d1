"""`functions`: what each head does."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from rich.console import Console
from rich.table import Table
from transformers import AutoTokenizer

from headprune.checkpoint.load_model import load_model, quiet_transformers
from headprune.checkpoint.out_folder import open_out
from headprune.errors import DataError, FileFormatError
from headprune.files import loads, read_text, write_text
from headprune.heads import HeadId, HeadMap, HeadMask
from headprune.jobs.job import SILENT, Progress
from headprune.jobs.options.functions import FunctionsOptions
from headprune.lab.analysis.functions import Findings, Thresholds, find_functions, parsed_sentences, read_sentences
from headprune.lab.analysis.pictures import heat_map, line_picture, write_picture
from headprune.structure.find import find_heads
from headprune.tasks.data import ready_tokenizer
from headprune.typed_json import from_plain, rest, to_plain
from headprune.types import Tokenizer

CODES = {"other": 0.0, "positional": 1.0, "syntactic": 2.0, "rare": 3.0}
BATCH = 16


@dataclass(frozen=True)
class HeadFunctions:
    """What a head does; the rest is what tells it."""

    functions: list[str]
    facts: Mapping[str, object] = rest()


@dataclass(frozen=True)
class Relation:
    """How often a relation was seen, and what always looking at one distance finds of it."""

    pairs: int
    baseline: float
    baseline_offset: int
    facts: Mapping[str, object] = rest()


@dataclass(frozen=True)
class Level:
    """Functions of the heads that are left at a level of pruning."""

    order: str
    kept: int
    positional: int
    syntactic: int
    rare: int
    other: int


@dataclass(frozen=True, kw_only=True)
class FunctionsResult:
    """Every head of a model with its functions."""

    model: str
    data: str
    sentences: int
    counts: Mapping[str, int]
    relations: Mapping[str, Relation]
    heads: Mapping[str, HeadFunctions]
    levels: tuple[Level, ...] = ()
    line: str = ""  # for people; not stored
    facts: Mapping[str, object] = rest()
    version: ClassVar[int] = 1

    def to_dict(self) -> dict[str, Any]:
        plain: dict[str, Any] = to_plain(self)
        del plain["line"]
        return plain

    @classmethod
    def from_dict(cls, content: object) -> FunctionsResult:
        return from_plain(cls, content)

    def message(self) -> str:
        return self.line


def functions(options: FunctionsOptions, progress: Progress = SILENT) -> FunctionsResult:
    """Tell positional, syntactic and rare-token heads (Voita et al., section 5)."""
    open_out("functions", options)
    spacy, path = options.spacy, options.data
    read = parsed_sentences(path, spacy) if spacy is not None else read_sentences(path)
    read = read[: options.sentences] if options.sentences else read
    tokenizer = _tokenizer(options.model)
    model = load_model(options.model, options.device)
    heads = find_heads(model)
    with progress.steps(-(-len(read) // BATCH)) as step:
        found = find_functions(
            model, read, tokenizer, thresholds=Thresholds(margin=options.margin), max_length=options.max_length,
            batch_size=BATCH, heads=heads, progress=step,
        )  # fmt: skip
    levels = [entry for path in options.levels or () for entry in _levels(path, found, heads)]
    page = _draw(found, heads, levels, options.out, options.picture)
    counts = found.counts()
    told = (
        f"{len(found.heads)} heads on {found.sentences} sentences: {counts['positional']} positional, "
        f"{counts['syntactic']} syntactic, {counts['rare']} rare-token, {counts['other']} none of these; {page}"
    )
    plain = {"model": options.model, "data": path.name, **found.to_dict(), "levels": to_plain(levels)}
    result = from_plain(FunctionsResult, {**plain, "line": f"{_table(found)}{told}"})
    write_text(options.out / "functions.json", json.dumps(result.to_dict(), indent=1))
    return result


def _tokenizer(model: str) -> Tokenizer:
    quiet_transformers()
    try:
        return ready_tokenizer(AutoTokenizer.from_pretrained(model), takes_words=True)
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"'{model}' has no tokenizer ({error}). Save one into the model's folder.") from error


def _table(found: Findings) -> str:
    """The best head of each relation against the best fixed offset (Voita et al., Table 1)."""
    table = Table("relation", "pairs", "best head", "accuracy", "best fixed offset")
    for name, (head, accuracy) in found.best().items():
        row = found.relations[name]
        offset = f"{row['baseline']:.2f} ({row['baseline_offset']:+d})"
        table.add_row(name, str(row["pairs"]), str(head), f"{accuracy:.2f}", offset)
    drawn = io.StringIO()
    Console(width=100, file=drawn).print(table)
    return drawn.getvalue()


def _levels(path: Path, found: Findings, heads: HeadMap) -> list[Level]:
    """The functions of the heads that are left, at every level that a curve or a sweep of gates has stored."""
    try:
        stored = loads(read_text(path, "levels"))
        lines = stored["curves"].items() if isinstance(stored, dict) else [("gates", [{"points": stored}])]
        points = [(name, point["kept"]) for name, runs in lines for run in runs[:1] for point in run["points"]]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FileFormatError(f"'{path}' is neither a curve.json nor a gates.json of headprune: {error!r}.") from error
    masks = [(name, HeadMask.from_dict(heads, kept)) for name, kept in points]
    return [Level(name, len(mask), **found.counts(mask)) for name, mask in masks]


def _file_name(order: str) -> str:
    """The name of an order comes from a file: it must not lead to another folder."""
    return "levels-" + re.sub(r"[^\w-]", "", order.replace(" ", "-"))[:100]


def _draw(found: Findings, heads: HeadMap, levels: Sequence[Level], out: Path, kind: str) -> Path:
    """The map of functions (Figure 8), and what is left of them at each level."""
    for order in dict.fromkeys(level.order for level in levels):
        rows = sorted((level for level in levels if level.order == order), key=lambda level: level.kept)
        lines = {name: ([row.kept for row in rows], [getattr(row, name) for row in rows]) for name in CODES}
        drawn = line_picture(lines, title=f"Functions of the heads left: {order}", x="heads left", y="heads")
        write_picture(drawn, out / _file_name(order), kind)
    codes: dict[str, list[float | None]] = {}
    for site in heads:
        codes[site.id] = [None] * site.original_num_heads
        for head in site.kept:
            row = found.heads.get(HeadId(site.id, head))
            if row is not None:
                codes[site.id][head] = max((CODES[name] for name in row["functions"]), default=0.0)
    title = "What heads do: 0 none, 1 positional, 2 syntactic, 3 rare tokens"
    return write_picture(heat_map(heads, codes, title=title, name="function"), out / "functions", kind)
