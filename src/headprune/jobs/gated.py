"""What `gates` finds: a model for each lambda or number of heads, as data and as the papers' pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from headprune.gates import Objective
from headprune.heads.headmap import SiteName
from headprune.lab.analysis.pictures import line_picture, write_picture
from headprune.tasks import ScoreSummary
from headprune.typed_json import from_plain, rest, to_plain

Line = tuple[Sequence[float], Sequence[float]]


@dataclass(frozen=True)
class GateStep:
    """What gates were at a step of training."""

    step: int
    prob_open: Mapping[str, list[float]]
    facts: Mapping[str, object] = rest()


@dataclass(frozen=True, kw_only=True)
class GatedModel:
    """One lambda or number of heads: scores before, with gates and after pruning, and which heads are left."""

    setting: str
    gate: str
    task: str
    objective: Objective
    before: ScoreSummary
    gated: ScoreSummary
    dev: ScoreSummary
    tests: Mapping[str, ScoreSummary]
    decided: float
    open: Mapping[str, int]
    components: Mapping[str, int]
    trajectory: tuple[GateStep, ...]
    heads: tuple[int, int]
    kept: Mapping[str, list[int]]
    original: Mapping[str, int]
    out: str
    facts: Mapping[str, object] = rest()  # what was asked, and settings of the task

    def message(self) -> str:
        low, high = self.dev.interval
        return (
            f"{self.setting}: {self.heads[0]} -> {self.heads[1]} heads, {self.dev.metric} {self.dev.score:.4f} "
            f"({low:.4f} to {high:.4f}), before {self.before.score:.4f}; {self.out}"
        )


@dataclass(frozen=True)
class GatesResult:
    """A sweep over lambdas or numbers of heads, fewest heads first."""

    models: tuple[GatedModel, ...]
    pages: tuple[Path, ...] = ()  # pictures
    version: ClassVar[int] = 1

    def to_dict(self) -> list[dict[str, Any]]:
        return [to_plain(one) for one in self.models]

    @classmethod
    def from_dict(cls, content: object) -> GatesResult:
        return cls(from_plain(tuple[GatedModel, ...], content))

    def message(self) -> str:
        pages = f"pictures: {', '.join(map(str, self.pages))}"
        return "\n".join([*(one.message() for one in self.models), pages])


def draw_gates(models: Sequence[GatedModel], out: Path, kind: str) -> list[Path]:
    """Retained heads against lambda; score against retained heads (Voita et al., Figure 7); active heads by component
    (Figure 9) and by pairs of layers (Figure 10) against pruned ones; P(open) over training."""
    kept, pruned = [one.heads[1] for one in models], [one.heads[0] - one.heads[1] for one in models]
    metric = models[0].dev.metric
    pages: list[tuple[str, Mapping[str, Line], str, str, str]] = []
    by_lambda = sorted((one.objective.weight, one.heads[1]) for one in models if one.objective.weight)
    if len(by_lambda) > 1:
        line = ([weight for weight, _ in by_lambda], [left for _, left in by_lambda])
        pages.append(("lambda", {"heads": line}, "Retained heads", "lambda", "heads"))
    if len(models) > 1:
        scores = [one.dev.score for one in models]
        pages.append(("score", {metric: (kept, scores)}, f"{metric} and retained heads", "heads", metric))
        for name, told, counts in (
            ("components", "by component", [one.components for one in models]),
            ("layers", "by pairs of layers", [open_by_pairs(one.open) for one in models]),
        ):
            lines: dict[str, Line] = {part: (pruned, [count[part] for count in counts]) for part in counts[0]}
            pages.append((name, lines, f"Active heads {told}", "heads pruned", "active heads"))
    written = [
        write_picture(line_picture(lines, title=title, x=x, y=y), out / name, kind)
        for name, lines, title, x, y in pages
    ]
    for one in models:
        steps = [entry.step for entry in one.trajectory]
        first = one.trajectory[0].prob_open if one.trajectory else {}
        lines = {
            f"{site}:{head}": (steps, [entry.prob_open[site][head] for entry in one.trajectory])
            for site, row in first.items()
            for head in range(len(row))
        }
        drawn = line_picture(lines, title=f"P(open) while training, {one.setting}", x="step", y="P(open)")
        written.append(write_picture(drawn, out / one.setting / "trajectory", kind))
    return written


def open_by_pairs(opened: Mapping[str, int]) -> dict[str, int]:
    """Open heads of layers 0-1, 2-3 … of each component."""
    counts: dict[str, int] = {}
    for site, count in opened.items():
        name = SiteName.parse(site)
        first = name.layer // 2 * 2
        pair = f"{f'{name.tower}.' if name.tower else ''}{name.component} {first}-{first + 1}"
        counts[pair] = counts.get(pair, 0) + count
    return counts
