"""docs/papers/verdicts.md: what the papers say, what was found here, and what follows. For papers_build.py."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headprune.lab.experiments.claims import Counts, Verdict
from headprune.lab.experiments.presets import Preset, Scale

NOTE = "<!-- Written by `make docs` from the presets and docs/results/data; edit docs/verdicts_page.py instead. -->"
Judged = Sequence[tuple[Preset, Sequence[Verdict]]]
HOW = (
    "Every statement of the four papers that can come out false, tried at a size for two cores with three seeds "
    "(`headprune run --all --seeds 1,2,3`). It **holds** or **does not hold** when the 95 % t interval over seeds lies "
    "wholly on one side, and is **open** otherwise; what is arithmetic needs no seeds. One rule in the code "
    "(`headprune.lab.experiments.claims`) decides, here as in reports. Other models, other data and fewer steps than "
    "the papers': a statement that does not hold here may well hold there, and the last column says why. What was "
    "decided table by table, and what it costs: [what is the papers', and what is not](decisions.md)."
)


def verdict_page(papers: Mapping[str, Any], judged: Judged) -> str:
    """Disagreements first, then what is open for want of agreement among seeds, what holds, and what is unfinished."""
    every = [one for _, found in judged for one in found]
    parts = [NOTE, "# What the papers say, and what was found", "", HOW, "", f"**{Counts.of(every).message()}**", ""]
    rows = []
    for name, paper in papers.items():
        found = [one for preset, some in judged if preset.study == paper.study for one in some]
        counts = Counts.of(found)
        rows.append(
            [f"[{paper.study}]({name}.md)", counts.all, counts.holds, counts.fails, counts.spread, counts.unfinished]
        )
    head = ["paper", "statements", "hold", "do not hold", "open: seeds differ", "open: fewer than 3 seeds"]
    parts += table(head, rows)
    for title, wanted in (
        ("Does not hold", lambda one: one.verdict == "does not hold"),
        ("Holds", lambda one: one.verdict == "holds"),
        ("Open: seeds differ too much to say", lambda one: not one.is_finding and "seeds differ" in one.told()),
        ("Open: fewer than three seeds", lambda one: not one.is_finding and "seeds differ" not in one.told()),
    ):
        parts += ["", f"## {title}", ""]
        some = list(_rows(papers, judged, wanted))
        head = [
            "table or figure",
            "statement",
            "who says it",
            "paper",
            "here (95 % interval)",
            "verdict",
            "why it may differ",
        ]
        parts += table(head, some) if some else ["None."]
    return "\n".join(parts) + "\n"


def _rows(papers: Mapping[str, Any], judged: Judged, wanted: Any) -> Iterator[list[Any]]:
    names = {paper.study: name for name, paper in papers.items()}
    for study, page in names.items():
        for preset, found in judged:
            title = f"{preset.line[0].upper()}{preset.line[1:]}: {preset.what}"
            link = f"[{study.partition(' ')[0]}, {preset.line}]({page}.md#{anchor(title)})"
            for one in found if preset.study == study else ():
                if wanted(one):
                    yield [link, *_cells(one, preset.scale("small"))]


def claims_table(claims: Sequence[Verdict], scale: Scale) -> list[str]:
    head = ["statement", "who says it", "paper", "here (95 % interval)", "verdict", "why it may differ"]
    return table(head, [_cells(one, scale) for one in claims])


def _cells(one: Verdict, scale: Scale) -> list[str]:
    who = f"the paper, {one.claim.cited}" if one.claim.cited else f"our reading: {one.claim.reading}"
    differs = one.claim.differs or scale.differs or "–"
    return [plain(one.text), plain(who), plain(one.paper), plain(one.here), one.told(), plain(differs)]


def verdict_counts(papers: Mapping[str, Any], judged: Judged) -> str:
    """The counts for other pages: in words, of all and by paper."""
    by_paper = {
        name: Counts.of(one for preset, some in judged if preset.study == paper.study for one in some)
        for name, paper in papers.items()
    }
    every = Counts.of(one for _, found in judged for one in found)
    content = {
        "sentence": every.message(), **vars(every),
        "papers": {name: {**vars(counts), "sentence": counts.message()} for name, counts in by_paper.items()},
    }  # fmt: skip
    return json.dumps(content, indent=1) + "\n"


def anchor(title: str) -> str:
    kept = re.sub(r"[^\w\s-]", "", title.encode("ascii", "ignore").decode().lower()).strip()
    return re.sub(r"[\s-]+", "-", kept)


def table(head: Sequence[Any], rows: Sequence[Sequence[Any]]) -> list[str]:
    return [f"| {' | '.join(map(str, cells))} |" for cells in (head, ["---"] * len(head), *rows)]


def plain(text: str) -> str:
    return re.sub(r"([\\`*_<>|])", r"\\\1", text)
