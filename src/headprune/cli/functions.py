"""`headprune functions`: what each head does."""

from __future__ import annotations

import json as json_module
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headprune.checkpoint.load_model import check_writable, load_model, quiet_transformers
from headprune.cli.options import Device, Json, Model, Picture, progress
from headprune.errors import DataError, FileFormatError
from headprune.files import read_text
from headprune.tasks.processor import ready_tokenizer

if TYPE_CHECKING:
    from headprune.heads import HeadMap
    from headprune.lab.analysis.functions import Findings

CODES = {"other": 0.0, "positional": 1.0, "syntactic": 2.0, "rare": 3.0}


def functions(
    model: Model,
    data: Annotated[Path, typer.Option(help="Sentences: a CoNLL-U file with gold trees, or text with --spacy.")],
    out: Annotated[Path, typer.Option(help="Folder for functions.json and pictures.")],
    spacy: Annotated[str | None, typer.Option(help="A spaCy model, by name or folder, that parses plain text.")] = None,
    levels: Annotated[
        list[Path] | None,
        typer.Option(help="curve.json or gates.json: which functions survive at each pruning level? Repeatable."),
    ] = None,
    sentences: Annotated[int, typer.Option(help="Only so many sentences; 0 is all.")] = 0,
    max_length: Annotated[int, typer.Option(help="Tokens a sentence at most; longer ones are left out.")] = 128,
    margin: Annotated[float, typer.Option(help="How far above the best fixed offset a syntactic head must be.")] = 0.10,
    picture: Picture = "html",
    json: Json = False,
    device: Device = "cpu",
) -> None:
    """Tell positional, syntactic and rare-token heads (Voita et al., section 5)."""
    check_writable(out)
    from transformers import AutoTokenizer

    from headprune.files import write_text
    from headprune.lab.analysis.functions import Thresholds, find_functions, parsed_sentences, read_sentences
    from headprune.structure import find_heads

    read = parsed_sentences(data, spacy) if spacy is not None else read_sentences(data)
    read = read[:sentences] if sentences else read
    quiet_transformers()
    try:
        tokenizer = ready_tokenizer(AutoTokenizer.from_pretrained(model), takes_words=True)
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"'{model}' has no tokenizer ({error}). Save one into the model's folder.") from error
    loaded = load_model(model, device)
    heads = find_heads(loaded)
    size = 16
    with progress(-(-len(read) // size)) as step:
        found = find_functions(
            loaded, read, tokenizer, thresholds=Thresholds(margin=margin), max_length=max_length, batch_size=size,
            heads=heads, progress=step,
        )  # fmt: skip
    survivors = [entry for path in levels or () for entry in _survivors(path, found, heads)]
    result = {"model": model, "data": data.name, **found.to_dict(), "levels": survivors}
    write_text(out / "functions.json", json_module.dumps(result, indent=1))
    page = _draw(found, heads, survivors, out, picture)
    if json:
        typer.echo(json_module.dumps(result, indent=1))
        return
    _table(found)
    counts = found.counts()
    typer.echo(
        f"{len(found.heads)} heads on {found.sentences} sentences: {counts['positional']} positional, "
        f"{counts['syntactic']} syntactic, {counts['rare']} rare-token, {counts['other']} none of these; {page}"
    )


def _table(found: Findings) -> None:
    """The best head of each relation against the best fixed offset (Voita et al., Table 1)."""
    from rich.console import Console
    from rich.table import Table

    table = Table("relation", "pairs", "best head", "accuracy", "best fixed offset")
    for name, (head, accuracy) in found.best().items():
        row = found.relations[name]
        offset = f"{row['baseline']:.2f} ({row['baseline_offset']:+d})"
        table.add_row(name, str(row["pairs"]), str(head), f"{accuracy:.2f}", offset)
    Console(width=100).print(table)


def _survivors(path: Path, found: Findings, heads: HeadMap) -> list[dict[str, Any]]:
    """The functions of the heads that are left, at every level that a curve or a sweep of gates has stored."""
    from headprune.files import loads
    from headprune.heads import HeadMask

    try:
        stored = loads(read_text(path, "levels"))
        lines = stored["curves"].items() if isinstance(stored, dict) else [("gates", [{"points": stored}])]
        points = [(name, point["kept"]) for name, runs in lines for run in runs[:1] for point in run["points"]]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FileFormatError(f"'{path}' is neither a curve.json nor a gates.json of headprune: {error!r}.") from error
    entries = []
    for name, kept in points:
        mask = HeadMask.from_dict(heads, kept)
        entries.append({"order": name, "kept": len(mask), **found.counts(mask)})
    return entries


def _file_name(order: str) -> str:
    """The name of an order comes from a file: it must not lead to another folder."""
    return "levels-" + re.sub(r"[^\w-]", "", order.replace(" ", "-"))[:100]


def _draw(found: Findings, heads: HeadMap, survivors: Sequence[dict[str, Any]], out: Path, kind: str) -> Path:
    """The map of functions (Figure 8), and what is left of them at each level."""
    from headprune.heads import HeadId
    from headprune.lab.analysis.pictures import heat_map, line_picture, write_picture

    for order in dict.fromkeys(entry["order"] for entry in survivors):
        rows = sorted((entry for entry in survivors if entry["order"] == order), key=lambda entry: entry["kept"])
        lines = {name: ([row["kept"] for row in rows], [row[name] for row in rows]) for name in CODES}
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
