"""docs/compare.md from benchmarks/results/peers.json. Who is ahead is worked out from the figures.

python benchmarks/peers/page.py
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent))
from words import ABOUT, CASES, COMMANDS, STRONG, TITLE, WHY, WHY_LEVEL

ROOT = Path(__file__).resolve().parent.parent.parent
STORED, PAGE = ROOT / "benchmarks" / "results" / "peers.json", ROOT / "docs" / "compare.md"
OURS = "headprune"
Result = Mapping[str, Any]


@dataclass
class Row:
    """One comparison: what is shown for each tool, and whether a peer is ahead of, level with or behind headprune."""

    key: str
    title: str
    cells: dict[str, str] = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)  # peer -> ahead, level, behind
    nobody: bool = False  # gets it right

    def ahead(self) -> str:
        """Who is ahead, by the states."""
        if OURS not in self.cells:
            return "not measured"
        better = [name for name, state in self.states.items() if state == "ahead"]
        level = [name for name, state in self.states.items() if state == "level"]
        if self.nobody:
            return "nobody"
        if better:
            return f"{_and(better)}; not headprune"
        return f"level: headprune, {_and(level)}" if level else OURS


def rows(result: Result) -> list[Row]:
    found = [
        _timed(result, "score", "score all heads on data, s"),
        _timed(result, "prune", "remove half of them, s"),
        _timed(result, "score_and_prune", "both together, s"),
        _timed(result, "score_by_weights", "score all heads without data, s"),
        _timed(result, "forward", "forward pass of the pruned model, s"),
        _timed(result, "speedup", "speed of the pruned model, x the whole one's", faster_is="larger"),
        _parameters(result),
        _facts(result, "equal", "largest difference from the masked model", _difference),
        _facts(result, "reload", "saved, then loaded in a fresh process", _reload),
    ]
    found += [_case(result, case, title) for case, title in CASES.items()]
    return [*found, _quality(result)]


def page(result: Result) -> str:
    names = list(result["tools"])
    model = result["model"]
    lines = [
        "<!-- made by benchmarks/peers/page.py from benchmarks/results/peers.json; do not edit -->",
        *TITLE,
        "",
        *(["**A trial run on a small model: not the comparison.**", ""] if result["quick"] else []),
        *_versions(result),
        "",
        f"Measured on {result['date']}: {model['layers']} layers of {model['heads']} heads, width {model['width']}, "
        f"random weights; {model['examples']} examples of {model['tokens']} tokens, batches of {model['batch']}; one "
        f"thread of a machine with {result['machine']['cores']} cores; medians of {result['rounds']} rounds.",
        "",
        f"| | {' | '.join(names)} | ahead |",
        f"|---|{'---|' * len(names)}---|",
    ]
    table = rows(result)
    for row in table:
        cells = [row.cells.get(name, "—") for name in names]
        lines.append(f"| {row.title} | {' | '.join(cells)} | {row.ahead()} |")
    lines += ["", *ABOUT, "", *_control(result), "", "## Where headprune is not ahead", "", *_not_ahead(result, table)]
    lines += ["", *_ways(result), "## What tools said", "", *_errors(result), "## Strong points of the peers", ""]
    for name in names[1:]:
        lines += [f"**{name}**", "", *(f"- {point}" for point in STRONG[name]), ""]
    return "\n".join([*lines, *COMMANDS]) + "\n"


def _timed(result: Result, kind: str, title: str, faster_is: str = "smaller") -> Row:
    """Level if the quartiles of the ratio to headprune reach into what headprune's ratio to itself spans."""
    row, figures = Row(kind, title), result["figures"].get(kind, {})
    control = figures.get("control", [1.0, 1.0, 1.0])
    low, high = min(control[1], 1 / control[2], 1.0), max(control[2], 1 / control[1], 1.0)
    for name in result["tools"]:
        if name not in figures:
            continue
        median = figures[name]["median"]
        row.cells[name] = f"{median:.3g}" if median < 100 else f"{median:.0f}"
        if name != OURS and "ratio" in figures[name]:
            first, last = figures[name]["ratio"][1:]
            state = "ahead" if last < low else "behind" if first > high else "level"
            swapped = {"ahead": "behind", "behind": "ahead", "level": "level"}
            row.states[name] = state if faster_is == "smaller" else swapped[state]
    return row


def _parameters(result: Result) -> Row:
    row = Row("parameters", "parameters removed with half of the heads")
    gone = {name: fact["before"] - fact["after"] for name, fact in _fit(result["facts"], "after").items()}
    for name, count in gone.items():
        row.cells[name] = f"{count:,} ({100 * count / result['facts'][name]['before']:.1f} %)"
        if name != OURS and OURS in gone:
            ratio = count / max(gone[OURS], 1)
            row.states[name] = "ahead" if ratio > 1.001 else "behind" if ratio < 0.999 else "level"
    return row


def _facts(result: Result, key: str, title: str, shown: Callable[[Result], tuple[bool, str]]) -> Row:
    """Something that is right or is not."""
    row = Row(key, title)
    told = {name: shown(result["facts"][name]) for name in result["tools"] if name in result["facts"]}
    return _judged(row, told)


def _case(result: Result, case: str, title: str) -> Row:
    return _judged(
        Row(case, title),
        {name: _verdict(cases[case]) for name, cases in result["cases"].items() if case in cases},
    )


def _judged(row: Row, told: Mapping[str, tuple[bool, str]]) -> Row:
    row.cells = {name: text for name, (_, text) in told.items()}
    ours = told.get(OURS, (False, ""))[0]
    for name, (right, _) in told.items():
        if name != OURS:
            row.states[name] = "level" if right and ours else "ahead" if right else "behind"
    row.nobody = not any(right for right, _ in told.values())
    return row


def _difference(fact: Result) -> tuple[bool, str]:
    if "error" in fact:
        return False, "error"
    right = fact.get("verdict") == "works"
    return right, f"{fact['difference']:.0e}{'' if right else ', not equal'}" if "difference" in fact else "none gone"


def _reload(fact: Result) -> tuple[bool, str]:
    found = fact.get("reload", fact)
    return bool(found.get("equal")), "equal" if found.get("equal") else "error" if "error" in found else "differs"


def _verdict(answer: Result) -> tuple[bool, str]:
    if "error" in answer:
        return False, "error"
    if answer["verdict"] == "kept":
        return False, "nothing removed"
    right = answer["verdict"] == "works"
    return right, "works" if right else f"wrong outputs ({answer['difference']:.1g} off)"


def _quality(result: Result) -> Row:
    row = Row("quality", "accuracy on SST-2 with half of MiniLM's heads, no training")
    found = result["quality"]
    if not found or "tools" not in found:
        return row  # without cells: not measured
    for name, tool in found["tools"].items():
        best = tool["ways"].get(tool["counts"], {})
        if "accuracy" not in best:
            row.cells[name] = "error"
            row.states |= {} if name == OURS else {name: "behind"}
            continue
        row.cells[name] = _accuracy(best)
        if name != OURS and "against" in best:
            _, low, high = best["against"]
            row.states[name] = "ahead" if low > 0 else "behind" if high < 0 else "level"
    return row


def _accuracy(row: Result) -> str:
    value, low, high = (100 * number for number in row["accuracy"])
    return f"{value:.1f} ({low:.1f}–{high:.1f})"


def _versions(result: Result) -> list[str]:
    lines = ["| tool | version | transformers | torch |", "|---|---|---|---|"]
    for name, tool in result["tools"].items():
        told = [tool["version"], tool["transformers"], tool["torch"]] if "version" in tool else ["failed", "", ""]
        lines.append(f"| {name} | {' | '.join(told)} |")
    return lines


def _control(result: Result) -> list[str]:
    spread = {kind: rows["control"] for kind, rows in result["figures"].items() if "control" in rows}
    told = [f"{kind.replace('_', ' ')} {mid:.3f} ({low:.3f}–{high:.3f})" for kind, (mid, low, high) in spread.items()]
    return [f"headprune ran twice, in two processes; the second against the first (quartiles): {', '.join(told)}."]


def _not_ahead(result: Result, table: list[Row]) -> list[str]:
    rows = [row for row in table if "ahead" in row.states.values()]
    lines = []
    for row in rows:
        values = {kind: figure[OURS]["median"] for kind, figure in result["figures"].items() if OURS in figure}
        reason = WHY.get(row.key, "The reason is not known.").format(**values)
        lines.append(f"- {row.title}: {_and([n for n, s in row.states.items() if s == 'ahead'])} ahead. {reason}")
    behind = lines or ["Nowhere in this table."]
    level = [row for row in table if row.ahead().startswith("level")]
    told = [f"- {row.title}. {WHY_LEVEL.get(row.key, 'The reason is not known.')}" for row in level]
    controls = [rows["control"] for rows in result["figures"].values() if "control" in rows]
    widest = max((abs(end - 1) for _, *ends in controls for end in ends), default=0.0)
    level_means = (
        "Times are level where the quartiles of the ratio meet those of headprune against itself, which in this run "
        f"differ by up to {widest:.0%}: smaller differences are not told apart. Level, and why:"
    )
    return [*behind, "", level_means, "", *told] if told else behind


def _ways(result: Result) -> list[str]:
    found = result["quality"]
    if not found or "tools" not in found:
        return []
    lines = ["## Accuracy by way", "", f"With all heads: {_accuracy(found['whole'])}.", ""]
    lines += [
        "| tool | way | heads left | accuracy | difference from headprune's first | s |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for name, tool in found["tools"].items():
        for way, row in tool["ways"].items():
            if "accuracy" not in row:
                lines.append(f"| {name} | {way} | | error | | |")
                continue
            gap = "{:+.1f} ({:+.1f} to {:+.1f})".format(*(100 * value for value in row["against"]))
            lines.append(f"| {name} | {way} | {row['heads']} | {_accuracy(row)} | {gap} | {row['seconds']:.1f} |")
    return [*lines, ""]


def _errors(result: Result) -> list[str]:
    """In the tools' own words."""
    lines = []
    for name, tool in result["tools"].items():
        told = {"start": tool["error"]} if "error" in tool else {}
        told |= result["failed"].get(name, {})
        fact = result["facts"].get(name, {})
        told |= {"facts": fact["error"]} if "error" in fact else {}
        told |= {"reload": fact["reload"]["error"]} if "error" in fact.get("reload", {}) else {}
        cases = result["cases"].get(name, {})
        told |= {CASES[case]: answer["error"] for case, answer in cases.items() if "error" in answer}
        ways = ((result["quality"] or {}).get("tools", {}).get(name) or {}).get("ways", {})
        told |= {way: row["error"] for way, row in ways.items() if "error" in row}
        note = tool.get("note")
        if told or note:
            lines += [f"**{name}**" + (f": {note}." if note else ""), ""]
            lines += [f"- {what}: `{_short(error)}`" for what, error in told.items()] + ([""] if told else [])
    return lines or ["Nothing.", ""]


def _short(error: str) -> str:
    text = " ".join(error.replace("`", "'").split())
    return text if len(text) <= 300 else f"{text[:300]} […]"


def _fit(table: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {name: row for name, row in table.items() if key in row and not name.endswith(" again")}


def _and(names: list[str]) -> str:
    return ", ".join(names)


if __name__ == "__main__":
    PAGE.write_text(page(json.loads(STORED.read_text())))
