"""What single commands left in a folder (score, curve, shrink …), as the content of a playground page."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from headprune.errors import FileFormatError, HeadpruneError, StoreError
from headprune.files import loads, markdown_text, read_text
from headprune.heads import HeadScores
from headprune.heads.stored import read_scores
from headprune.jobs.ablate import Ablated
from headprune.jobs.curve import Curved
from headprune.jobs.evaluate import Evaluated
from headprune.jobs.functions import FunctionsResult
from headprune.jobs.prune import PruneResult
from headprune.lab.playground.content import KIND, Content, Measured, Point, SiteRow, Way, Worth
from headprune.shrink import Shrunk
from headprune.typed_json import from_plain

DEPTH, MOST = 3, 2000  # folders in folders, and files that are looked at
NAMES = ("scores.json", "curve.json", "ablation.json", "functions.json", "shrink.json", "prune.json", "evaluation.json")
LEFT_OUT = ("checkpoints", "unfinished", "trials")


@dataclass
class _Found:
    """Everything of a folder, by what it is."""

    scores: list[HeadScores] = field(default_factory=list)
    ablated: list[Ablated] = field(default_factory=list)
    functions: list[FunctionsResult] = field(default_factory=list)
    ways: list[Way] = field(default_factory=list)
    shrunk: list[tuple[Path, Shrunk]] = field(default_factory=list)
    facts: list[tuple[str, str]] = field(default_factory=list)
    sites: dict[str, int] = field(default_factory=dict)  # how many heads, or neurons, each had
    metric: str = ""
    played: Content | None = None


def ordinary_content(folders: list[Path], title: str | None = None) -> Content:
    """A page of what was found; a file that cannot be read is told on it, and the others are shown."""
    found = _Found()
    count = 0
    for folder in folders:
        for path in _files(folder):
            count += 1
            try:
                _read(path, path.relative_to(folder), found)
            except (HeadpruneError, ValueError, TypeError) as error:
                found.facts.append((str(path.relative_to(folder)), f"cannot be read: {error}"))
    if not count:
        raise StoreError(
            f"'{folders[0]}' holds no results: expected a folder that `headprune run --out` wrote, with trials/*.json, "
            f"or one with {', '.join(NAMES)}, as single commands write."
        )
    if found.played is not None:
        return replace(found.played, title=title or found.played.title, facts=(*found.played.facts, *found.facts))
    ways = [*found.ways, *_shrink_ways(found)]
    return Content(
        title=title or f"Results in {folders[0].resolve().name}",
        about="From stored results alone: no model was run for this page.",
        sites=_sites(found), worth=_worth(found), ways=tuple(ways), metric=found.metric, facts=tuple(found.facts),
    )  # fmt: skip


def markdown_facts(content: Content) -> str:
    """The same for a model card: what was stored, and every measured point."""
    lines = [f"# {markdown_text(content.title)}", "", content.about, "", "| result | |", "|---|---|"]
    lines += [f"| {markdown_text(name)} | {markdown_text(told)} |" for name, told in content.facts]
    for way in content.ways:
        metric = way.metric or content.metric or "score"
        lines += ["", f"| {markdown_text(way.name)} | heads | {markdown_text(metric)} |", "|---|---:|---:|"]
        for point in way.points:
            told = "" if point.score is None else f"{point.score:.4g}"
            lines.append(f"| {markdown_text(point.label)} | {point.heads} | {told} |")
    return "\n".join(lines) + "\n"


def _files(folder: Path) -> Iterator[Path]:
    looked = 0
    for place, inner, names in os.walk(folder):
        depth = len(Path(place).relative_to(folder).parts)
        inner[:] = sorted(name for name in inner if not name.startswith(".") and name not in LEFT_OUT and depth < DEPTH)
        for name in sorted(names):
            looked += 1
            if looked > MOST:
                return
            if name in NAMES or (name.endswith(".json") and Path(place, name).with_suffix(".html").is_file()):
                yield Path(place, name)


def _read(path: Path, name: Path, found: _Found) -> None:
    text = read_text(path, "result")
    if path.name == "scores.json":
        scores = read_scores(path)
        found.scores.append(scores)
        found.sites |= {site: len(row) for site, row in scores.scores.items()}
        found.facts.append((str(name), f"scores by {scores.method} on {scores.data}"))
        return
    content = loads(text)
    if path.name not in NAMES:
        if isinstance(content, dict) and content.get("kind") == f"headprune.{KIND}":
            found.played = Content.from_json(text)
        return
    if not isinstance(content, dict):
        raise FileFormatError(f"found {type(content).__name__}, expected a table.")
    _reader[path.name](content, name, found)


def _read_curve(content: Mapping[str, object], name: Path, found: _Found) -> None:
    curved = Curved.from_dict(dict(content))
    found.metric = str(curved.settings.get("metric", found.metric))
    for order, runs in curved.curves.items():
        whole = runs[0].points[0].kept
        for site, kept in whole.items():
            found.sites.setdefault(site, max(kept, default=-1) + 1)
        if order == "random" and len(curved.curves) > 1:
            continue
        points = tuple(
            Point(label=f"{point.pruned} heads removed", heads=sum(map(len, point.kept.values())), neurons=0,
                  parameters=0, macs=0, kept=_marks(point.kept, found.sites), score=point.score)
            for point in runs[0].points
        )  # fmt: skip
        found.ways.append(Way(name=f"heads, {order} ({name})", axis="heads", points=points))
    found.facts.append((str(name), f"{found.metric} on {curved.examples} examples of {curved.split} as heads go"))


def _read_ablation(content: Mapping[str, object], name: Path, found: _Found) -> None:
    ablated = Ablated.from_dict(dict(content))
    found.ablated.append(ablated)
    for head in ablated.heads:
        site, _, index = head.rpartition(":")
        found.sites[site] = max(found.sites.get(site, 0), int(index) + 1)
    low, high = ablated.base.interval
    found.facts.append(
        (str(name), f"{ablated.base.metric} {ablated.base.score:.4f} ({low:.4f} to {high:.4f}) with all heads, and "
                    f"without each of {len(ablated.heads)}")
    )  # fmt: skip


def _read_functions(content: Mapping[str, object], name: Path, found: _Found) -> None:
    functions = FunctionsResult.from_dict(dict(content))
    found.functions.append(functions)
    counts = ", ".join(f"{count} {what}" for what, count in functions.counts.items())
    found.facts.append((str(name), f"{counts} on {functions.sentences} sentences"))


def _read_shrink(content: Mapping[str, object], name: Path, found: _Found) -> None:
    shrunk = from_plain(Shrunk, dict(content))
    found.shrunk.append((name, shrunk))
    found.facts.append((str(name), f"{shrunk.budget}: {shrunk.macs_left:.0%} of the MACs left; {shrunk.price_text()}"))


def _read_prune(content: Mapping[str, object], name: Path, found: _Found) -> None:
    pruned = from_plain(PruneResult, dict(content))
    (heads, left), (macs, fewer) = pruned.heads, pruned.macs
    told = f"{heads} -> {left} heads, {1 - fewer / max(1, macs):.0%} fewer MACs"
    found.facts.append((str(name), told))


def _read_evaluation(content: Mapping[str, object], name: Path, found: _Found) -> None:
    scored = Evaluated.from_dict(dict(content))
    low, high = scored.interval
    told = f"{scored.metric} {scored.score:.4f} ({low:.4f} to {high:.4f}) on {scored.examples} of {scored.split}"
    if scored.against is not None:
        low, high = scored.against.interval
        told += f"; the other model {scored.against.score:.4f}, change {scored.against.change:+.4f} "
        told += f"({low:+.4f} to {high:+.4f})"
    found.facts.append((str(name), told))


_reader = {
    "curve.json": _read_curve,
    "ablation.json": _read_ablation,
    "functions.json": _read_functions,
    "shrink.json": _read_shrink,
    "prune.json": _read_prune,
    "evaluation.json": _read_evaluation,
}


def _shrink_ways(found: _Found) -> Iterator[Way]:
    """Models that were made of one whole model: a point each, with their agreement with it."""
    groups: dict[object, list[tuple[Path, Shrunk]]] = {}
    for name, shrunk in found.shrunk:
        groups.setdefault(shrunk.before, []).append((name, shrunk))
    for before, models in groups.items():
        sites = {site: (max(kept, default=-1) + 1) for _, one in models for site, kept in one.kept.items()}
        for site, size in sites.items():
            if ".neurons." in f".{site}.":
                size = before.neurons // max(1, sum(".neurons." in f".{other}." for other in sites))  # type: ignore[attr-defined]
            found.sites[site] = max(found.sites.get(site, 0), size)
        full = {
            site: ("1" * size if ".neurons." not in f".{site}." else str(size)) for site, size in found.sites.items()
        }
        points = [Point(label="the whole model", kept=full, score=1.0, **_size(before))]
        for name, one in sorted(models, key=lambda pair: -pair[1].after.macs):
            speed = one.speed
            timed = None if speed is None else Measured(
                speedup=speed.speedup, low=speed.spread[0], high=speed.spread[1], control=speed.control
            )  # fmt: skip
            points.append(
                Point(label=f"{one.macs_left:.0%} of the MACs left ({name.parent})", kept=_marks(one.kept, found.sites),
                      score=one.price[1].agreement, speed=timed, price=one.price_text(), **_size(one.after))
            )  # fmt: skip
        yield Way(name="budget, as shrink made them", axis="MACs", points=tuple(points), metric="agreement")


def _size(size: Any) -> dict[str, Any]:
    return {"heads": size.heads, "neurons": size.neurons, "parameters": size.parameters, "macs": size.macs}


def _marks(kept: Mapping[str, list[int]], sites: Mapping[str, int]) -> dict[str, str]:
    found = {}
    for site, heads in kept.items():
        left = set(heads)
        marks = "".join("1" if head in left else "0" for head in range(sites.get(site, 0)))
        found[site] = str(len(heads)) if ".neurons." in f".{site}." else marks
    return found


def _sites(found: _Found) -> tuple[SiteRow, ...]:
    rows = []
    for site, size in found.sites.items():
        neurons = ".neurons." in f".{site}."
        rows.append(SiteRow(id=site, heads=size, kept=() if neurons else tuple(range(size)), is_neurons=neurons))
    return tuple(rows)


def _worth(found: _Found) -> Worth | None:
    changes: dict[str, list[float | None]] = {}
    for ablated in found.ablated[:1]:
        for head, row in ablated.heads.items():
            site, _, index = head.rpartition(":")
            line = changes.setdefault(site, [None] * found.sites[site])
            line[int(index)] = row.change
    functions = {head: tuple(row.functions) for one in found.functions[:1] for head, row in one.heads.items()}
    kept = {site: tuple(line) for site, line in changes.items()}
    if found.scores:
        first = found.scores[0]
        values = {site: tuple(row) for site, row in first.normalized().items()}
        return Worth(name=first.method, values=values, changes=kept, functions=functions)
    if kept:
        values = {site: tuple(None if one is None else -one for one in line) for site, line in kept.items()}
        return Worth(name="ablation", values=values, changes=kept, functions=functions)
    return None
