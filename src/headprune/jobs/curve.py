"""`curve`: score against share pruned, in several orders."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from torch import nn

from headprune.budgets.curves import Curve, Rescore, pruning_curve
from headprune.checkpoint.out_folder import open_out
from headprune.errors import DataError
from headprune.files import WorkParts, write_text
from headprune.heads import HeadMap, HeadMask, HeadScores
from headprune.heads.mask import Unit
from headprune.heads.stored import read_scores
from headprune.jobs.job import SILENT, Progress
from headprune.jobs.options.curve import CurveOptions
from headprune.jobs.task_result import TaskResult
from headprune.lab.analysis.pictures import curve_picture, write_picture
from headprune.scoring import score
from headprune.scoring.resumable import work_key
from headprune.structure.find import find_heads
from headprune.surgery.prune import prune_
from headprune.tasks import Task, evaluate
from headprune.tasks.data import open_task


@dataclass(frozen=True, kw_only=True)
class Curved(TaskResult):
    """Curves by the name of their order; several of one name are runs that differ by chance."""

    split: str
    examples: int
    seed: int
    removed: bool
    curves: Mapping[str, tuple[Curve, ...]]
    shares: tuple[float, ...] = ()
    page: Path | None = None
    unstored = ("shares", "page")

    def message(self) -> str:
        lines = []
        for name, runs in self.curves.items():
            means = [sum(run.points[place].score for run in runs) / len(runs) for place in range(len(self.shares))]
            lines.append(f"{name:24} " + " ".join(f"{mean:.3f}" for mean in means))
        at = ", ".join(f"{share:.0%}" for share in self.shares)
        return "\n".join([*lines, f"{self.settings['metric']} at {at} pruned; {self.page}"])


@dataclass(frozen=True)
class _Orders:
    """The orders to follow: of files, at random, and by sensitivity on calibration data, scored anew if asked."""

    files: Sequence[Path]
    seeds: Sequence[int]
    calibration: list[dict[str, Any]]
    rescore: bool = False

    def count(self) -> int:
        return len(self.files) + len(self.seeds) + bool(self.calibration)

    def of(self, model: nn.Module, heads: HeadMap) -> list[tuple[str, HeadScores, Rescore | None]]:
        """Every order: its name, its first scores, and how to score anew after a step if it does."""

        def scored(mask: HeadMask | None = None) -> HeadScores:
            return score(model, self.calibration, heads=heads, mask=mask)

        orders: list[tuple[str, HeadScores, Rescore | None]] = []
        read = [read_scores(path) for path in self.files]
        for path, scores in zip(self.files, read, strict=True):
            alone = [other.method for other in read].count(scores.method) == 1
            orders.append((scores.method if alone else f"{scores.method} ({path})", scores, None))
        orders += [("random", score(model, method="random", heads=heads, seed=seed), None) for seed in self.seeds]
        if self.calibration and self.rescore:
            orders.append(("sensitivity, re-scored", scored(), scored))
        elif self.calibration:
            orders.append(("sensitivity", scored(), None))
        if not orders:
            raise DataError("No order to follow: give --scores, --random or --rescore.")
        return orders


@dataclass(frozen=True)
class _MaskScore:
    """The metric with only some heads; what was measured before an interruption is not measured again."""

    model: nn.Module
    heads: HeadMap
    batches: list[dict[str, Any]]
    task: Task
    removed: bool
    parts: WorkParts

    def __call__(self, mask: HeadMask) -> float:
        known = self.parts.get(mask.to_json())
        if known is None:
            known = self._score(mask)
            self.parts.put(mask.to_json(), known)
        return float(known)

    def _score(self, mask: HeadMask) -> float:
        if not self.removed:
            return evaluate(self.model, self.batches, self.task, mask=mask, heads=self.heads).score
        return evaluate(prune_(copy.deepcopy(self.model), mask), self.batches, self.task).score


def curve(options: CurveOptions, progress: Progress = SILENT) -> Curved:
    """Measure how the score falls as more heads go."""
    out = open_out("curve", options).path
    options.check()
    opened = open_task(options.data, options.model)
    task, rows = opened.task, opened.examples(options.split, options.examples, options.seed)
    batches, shares = opened.batches(rows), [step / options.steps for step in range(options.steps + 1)]
    calibration: list[dict[str, Any]] = []
    if options.rescore or options.checkpoints:
        calibration = opened.inputs(opened.examples("train", options.rescore_examples, options.seed))
    # Each run is a name for its curves, a model, and the orders to follow on it.
    seeds = range(options.seed, options.seed + options.random)
    runs = [("", options.model, _Orders(options.scores or (), seeds, calibration, options.rescore))]
    if options.checkpoints is not None:
        runs = [(path.name, str(path), _Orders((), (), calibration)) for path in _checkpoints(options.checkpoints)]
    curves: dict[str, tuple[Curve, ...]] = {}
    model = opened.load_model(runs[0][1], options.device)
    parts = _parts(options.components, model)
    with progress.steps(sum(orders.count() for *_, orders in runs) * len(parts) * len(shares)) as step:
        for prefix, name, orders in runs:
            model = model if name == runs[0][1] else opened.load_model(name, options.device)
            heads = find_heads(model)
            key = work_key(model, batches, {**task.settings(), "removed": options.removed})
            measured = _MaskScore(model, heads, batches, task, options.removed, WorkParts(out / "unfinished", key))
            for order, first, again in orders.of(model, heads):
                for part, within in parts.items():
                    line = pruning_curve(
                        heads, first, measured, rescore=again, components=within, shares=shares,
                        metric=task.metric.name, unit=cast(Unit, options.unit), progress=step,
                    )  # fmt: skip
                    called = ", ".join(filter(None, (part, prefix or order)))
                    curves[called] = (*curves.get(called, ()), line)
    result = Curved(
        settings=task.settings(), split=options.split, examples=len(rows), seed=options.seed, removed=options.removed,
        curves=curves, shares=tuple(shares),
    )  # fmt: skip
    write_text(out / "curve.json", json.dumps(result.to_dict(), indent=1))
    done = "removed" if options.removed else "masked"
    title = f"{task.name} {options.split}: {task.metric.name} as heads are {done}"
    page = write_picture(curve_picture(curves, title=title), out / "curve", options.picture)
    shutil.rmtree(out / "unfinished", ignore_errors=True)
    return replace(result, page=page)


def _parts(components: str | None, model: nn.Module) -> dict[str, list[str] | None]:
    """What to prune in: a name for the curves (where there are several) and the components."""
    if components == "each":
        return {component: [component] for component in find_heads(model).components}
    return {"": components.split(",") if components is not None else None}


def _checkpoints(folder: Path) -> list[Path]:
    """The folders of a training run, in the order of their steps."""
    found = [path for path in folder.glob("*") if (path / "config.json").is_file()]
    if not found:
        raise DataError(f"'{folder}' holds no checkpoints. Train with --keep-checkpoints and give OUT/checkpoints.")
    return sorted(found, key=lambda path: [int(part) if part.isdecimal() else part for part in path.name.split("-")])
