"""The leaderboard as a page: docs/leaderboard.md."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.leaderboard.by_cost import is_by_cost
from benchmarks.leaderboard.cells import BASELINE, WINNER, specs
from benchmarks.leaderboard.cost_page import cost_sections

LARGE_LOSS = {"perplexity": 0.5}  # in nats; 5 points of other metrics


def page(every: Sequence[Mapping[str, Any]]) -> str:
    """docs/leaderboard.md."""
    cells = [cell for cell in every if not is_by_cost(cell)]
    places = dict.fromkeys((str(c["model"]), str(c["data"])) for c in cells)
    lines = [
        "<!-- made by `python -m benchmarks.leaderboard --page`; do not edit -->",
        "# Leaderboard: cheaper models, and what it costs",
        "",
        "Ways of making a model smaller, at equal cost and at equal numbers of heads. What the names mean: [pruning "
        "without training](without-training.md).",
        "",
        *cost_sections(every),
        "## By heads",
        "",
        "Development tasks all: `best` was chosen after looking at these figures. Ways of choosing heads, with and "
        "without repair, at the same number of heads. One fine-tuned model for each task; mean over three seeds (draws "
        "of the calibration data, of the order, of the training after it) ± the half width of its 95 % interval "
        "(Student's t; none for a single seed), so that another fine-tuning may differ by more. Classifiers: score on "
        "the dev set, which is given to no method; heads are chosen and repaired on 512 training examples. SmolLM2: "
        "whole groups go, perplexity of the first 32,000 tokens of the WikiText-2 test text; chosen and repaired on 32 "
        "pieces of 256 tokens of its validation text. `ablation` and `all-but-one` take a pass for every head or "
        "group, and choose on a quarter of that on mpnet and SmolLM2. Log-loss in nats, per example or token. Seconds: "
        "processor time of choosing, repairing and training with one thread, which is the time that they take on an "
        "idle machine; without evaluation. `best` and the repairs are those of version 0.1.0 here: `curvature` with "
        "least squares, all with a ridge of 1e-4. Gates "
        "learn towards a number of heads, and their start and freezing are ours, not the papers'.",
        "",
        f"{len(cells)} of {len(specs())} cells are measured. `benchmarks/leaderboard/run.sh` makes the models and goes "
        "on where it stopped; `python -m benchmarks.leaderboard --cell NAME` computes one cell again.",
        "",
        *_headline(cells, places),
        *_on_average(cells, places),
    ]
    for model, data in places:
        mine = [c for c in cells if (c["model"], c["data"]) == (model, data)]
        for epochs in sorted({int(c["epochs"]) for c in mine}):
            title = "without training" if not epochs else f"then {epochs} epoch of training"
            part = [c for c in mine if int(c["epochs"]) == epochs]
            lines += ["", f"### {model}, {data}, {title}", "", *_table(part)]
    return "\n".join(lines) + "\n"


def _headline(cells: Sequence[Mapping[str, Any]], places: Iterable[tuple[str, str]]) -> list[str]:
    """`best` at the smallest share where Michel et al.'s order loses much."""
    lines = [
        "### Where sensitivity loses much",
        "",
        "The smallest share at which pruning by sensitivity (Michel et al.) loses at least 5 points, or 0.5 nats, and "
        "what `best` loses there. Parity: in how many seeds the paired 95 % interval over examples excludes it.",
        "",
        "| model | share | whole | sensitivity | loses | best | loses | part of the loss | parity excluded |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for model, data in places:
        found = hardest(cells, model, data)
        if found is not None:
            values = [found.shown(found.full), found.shown(found.rival), found.lost(found.rival_loss)]
            values += [found.shown(found.best), found.lost(found.best_loss)]
            row = [f"{model}, {data}", f"{found.share:.0%}", *values, f"{found.part:.0%}"]
            lines.append(f"| {' | '.join(row)} | {found.beyond} of {found.seeds} |")
    return lines if len(lines) > 6 else []


@dataclass(frozen=True)
class Hardest:
    """Means over seeds where pruning by sensitivity begins to lose much."""

    metric: str
    share: float
    full: float
    rival: float
    best: float
    rival_loss: float  # in nats, or as a share
    best_loss: float
    beyond: int  # seeds in which the interval of the difference excludes none
    seeds: int

    def lost(self, loss: float) -> str:
        return f"{loss:.3f} nats" if self.metric == "perplexity" else f"{100 * loss:.2f} points"

    def shown(self, value: float) -> str:
        return _shown(value, self.metric != "perplexity")

    @property
    def part(self) -> float:
        return self.best_loss / self.rival_loss


def hardest(cells: Sequence[Mapping[str, Any]], model: str, data: str) -> Hardest | None:
    """None where no share loses as much, or not all of it is measured."""
    by_heads = [c for c in cells if not is_by_cost(c)]
    mine = [c for c in by_heads if (c["model"], c["data"], int(c["epochs"])) == (model, data, 0)]
    for share in sorted({float(c["prune"]) for c in mine}):
        here = [c for c in mine if float(c["prune"]) == share]
        rivals = [c for c in here if (c["method"], c["recover"]) == BASELINE]
        bests = [c for c in here if (c["method"], c["recover"]) == WINNER]
        compared = all(c.get("against") for c in bests)
        if not rivals or not compared or {c["seed"] for c in rivals} != {c["seed"] for c in bests}:
            continue
        full, rival, best = (
            statistics.mean(float(c[name]) for c in rows)
            for name, rows in (("full", rivals), ("score", rivals), ("score", bests))
        )
        intervals = [c["against"]["interval"] for c in bests]
        beyond = sum(low > 0 or high < 0 for low, high in intervals)
        lost, left = (statistics.mean(map(_loss, rows)) for rows in (rivals, bests))
        found = Hardest(str(rivals[0]["metric"]), share, full, rival, best, lost, left, beyond, len(bests))
        if found.rival_loss >= LARGE_LOSS.get(found.metric, 0.05):
            return found
    return None


def _loss(cell: Mapping[str, Any]) -> float:
    """What went with the heads: in nats, or as a share."""
    before, after = ("nll", "nll_full") if cell["metric"] == "perplexity" else ("full", "score")
    return float(cell[before]) - float(cell[after])


def on_average(cells: Sequence[Mapping[str, Any]], model: str) -> list[tuple[tuple[str, str], list[float]]]:
    """Ways without training, least mean loss first: what each loses on average over tasks, and at each share. Only ways
    that are measured on all tasks of the model, with all shares and seeds."""
    mine = [c for c in cells if c["model"] == model and not int(c["epochs"]) and not is_by_cost(c)]
    wanted = [spec for spec in specs() if spec.model == model and not spec.epochs]
    shares = sorted({spec.prune for spec in wanted})
    found = []
    for way in dict.fromkeys((spec.method, spec.recover) for spec in wanted):
        here = [c for c in mine if (c["method"], c["recover"]) == way]
        if len(here) == sum((spec.method, spec.recover) == way for spec in wanted):
            by_share = [statistics.mean(_loss(c) for c in here if float(c["prune"]) == share) for share in shares]
            found.append((way, [statistics.mean(by_share), *by_share]))
    return sorted(found, key=lambda pair: pair[1][0])


def _on_average(cells: Sequence[Mapping[str, Any]], places: Iterable[tuple[str, str]]) -> list[str]:
    """One table for each model, over its tasks."""
    lines = []
    for model in dict.fromkeys(name for name, _ in places):
        rows = on_average(cells, model)
        if not rows:
            continue
        tasks = ", ".join(data for name, data in places if name == model)
        shares = sorted({float(c["prune"]) for c in cells if c["model"] == model})
        in_nats = any(c["metric"] == "perplexity" for c in cells if c["model"] == model)
        lines += [
            "",
            f"### {model}: {'nats' if in_nats else 'points'} lost on average over {tasks}, without training",
            "",
            "| order | repair | on average | " + " | ".join(f"{share:.0%} of heads gone" for share in shares) + " |",
            "|---|---|---:|" + "---:|" * len(shares),
            *(
                f"| {_NAMES.get(way[0], way[0])} | {way[1]} | "
                + " | ".join(f"{x:.3f}" if in_nats else f"{100 * x:.2f}" for x in losses)
                + " |"
                for way, losses in rows
            ),
        ]
    return lines


def _table(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    shares = sorted({float(c["prune"]) for c in cells})
    metric = str(cells[0]["metric"])
    is_share = metric != "perplexity"
    full = statistics.mean(float(c["full"]) for c in cells)
    nll = statistics.mean(float(c["nll_full"]) for c in cells)
    names = [f"{share:.0%} of heads gone" for share in shares]
    lines = [
        f"With all heads: {metric} {_shown(full, is_share)}, log-loss {nll:.4f}.",
        "",
        "| order | repair | " + " | ".join(f"{name} | log-loss" for name in names) + " | seconds | seeds |",
        "|---|---|" + "---:|---:|" * len(shares) + "---:|---:|",
    ]
    rows = []
    for method, recover in dict.fromkeys((str(c["method"]), str(c["recover"])) for c in cells):
        mine = [c for c in cells if (c["method"], c["recover"]) == (method, recover)]
        parts, sort_by = [], -math.inf
        for share in shares:
            here = [c for c in mine if float(c["prune"]) == share]
            if not here:
                parts.append("| | ")
                continue
            scores = [float(c["score"]) for c in here]
            parts.append(f"| {_spread(scores, is_share)} | {statistics.mean(float(c['nll']) for c in here):.4f} ")
            sort_by = statistics.mean(scores) * (1 if is_share else -1)
        seconds = statistics.median(float(c["seconds"]) for c in mine)
        seeds = len({c["seed"] for c in mine})
        row = f"| {_NAMES.get(method, method)} | {recover} {''.join(parts)}| {seconds:.1f} | {seeds} |"
        rows.append((sort_by, row))
    lines += [row for _, row in sorted(rows, key=lambda pair: -pair[0])]
    return [*lines, *_against(cells, is_share), *_notes(cells)]


def _notes(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    """What is to be known about some cells, told once for all that it is true of."""
    told: dict[str, dict[str, None]] = {}
    for c in cells:
        if c.get("note"):
            told.setdefault(str(c["note"]), {})[f"{c['method']}/{c['recover']}"] = None
    lines = [f"- {', '.join(ways)}: {note}" for note, ways in told.items()]
    return ["", "Notes:", "", *lines] if lines else []


_NAMES = {
    "voita": "Hard Concrete gates, after Voita et al.",
    "shim": "Binary Concrete gates, after Shim et al.",
    "budhraja": "random, as many from every layer (Budhraja et al.)",
    "sensitivity": "sensitivity (Michel et al.)",
}


def _against(cells: Sequence[Mapping[str, Any]], is_share: bool) -> list[str]:
    """`best` against Michel et al.'s order, by paired intervals over dev examples."""
    compared = [c for c in cells if c["method"] == "best" and c.get("against")]
    if not compared:
        return []
    unit = "points" if is_share else "perplexity"
    lines = [
        "",
        f"`best` against sensitivity without repair, same number of heads, paired over examples, in {unit}:",
        "",
    ]
    for c in compared:
        change, low, high = (100**is_share * float(x) for x in (c["against"]["change"], *c["against"]["interval"]))
        lines.append(f"- {float(c['prune']):.0%}, seed {c['seed']}: {change:+.2f} ({low:+.2f} to {high:+.2f})")
    return lines


def _spread(values: Sequence[float], is_share: bool) -> str:
    mean = statistics.mean(values)
    if len(values) < 2:
        return _shown(mean, is_share)
    from scipy import stats

    half = float(stats.t.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / math.sqrt(len(values))
    return f"{_shown(mean, is_share)} ± {_shown(half, is_share)}"


def _shown(value: float, is_share: bool) -> str:
    return f"{100 * value:.2f}" if is_share else f"{value:.2f}"
