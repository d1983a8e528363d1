"""`headprune curve`: score against share pruned, in several orders."""

from __future__ import annotations

import json as json_module
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headprune.checkpoint.load_model import check_writable
from headprune.cli.options import Device, Json, Model, Picture, Seed, progress
from headprune.cli.widening import takes_task
from headprune.errors import DataError
from headprune.heads.stored import read_scores
from headprune.jobs.options.task import TaskOptions
from headprune.tasks.data import open_task

if TYPE_CHECKING:
    from headprune.budgets.curves import Curve, Rescore
    from headprune.heads import HeadMap, HeadMask, HeadScores
    from headprune.tasks import Task


@takes_task()
def curve(
    model: Model,
    data: TaskOptions,
    out: Annotated[Path, typer.Option(help="Folder for curve.json and its picture.")],
    scores: Annotated[
        list[Path] | None, typer.Option(help="A scores file whose order to follow; give it again for more orders.")
    ] = None,
    random: Annotated[int, typer.Option(help="So many random orders as well.")] = 3,
    rescore: Annotated[
        bool,
        typer.Option("--rescore", help="Also follow sensitivity scored anew after each step, on --rescore-examples."),
    ] = False,
    rescore_examples: Annotated[int, typer.Option(help="Training examples to score on at each step.")] = 512,
    checkpoints: Annotated[
        Path | None,
        typer.Option(help="A folder of checkpoints: the sensitivity curve of each, instead (Michel et al., Figure 5)."),
    ] = None,
    steps: Annotated[int, typer.Option(help="Points between nothing and everything pruned.")] = 10,
    components: Annotated[
        str | None,
        typer.Option(
            help="Prune only in these: encoder, decoder, cross (comma-separated); each: one curve a component "
            "(Michel et al., Figure 4)."
        ),
    ] = None,
    unit: Annotated[str, typer.Option(help="What goes together: head, group (KV group) or query.")] = "head",
    removed: Annotated[
        bool, typer.Option("--removed", help="Really remove the heads at every point, instead of masking them.")
    ] = False,
    split: Annotated[str, typer.Option(help="The part of the data to evaluate on.")] = "dev",
    examples: Annotated[int, typer.Option(help="A random part of so many examples; 0 is all.")] = 0,
    seed: Seed = 0,
    picture: Picture = "html",
    json: Json = False,
    device: Device = "cpu",
) -> None:
    """Draw how the score falls as more heads go."""
    check_writable(out)
    if steps < 1:
        raise DataError(f"--steps is {steps}; a curve needs at least one step.")
    from headprune.budgets.curves import pruning_curve
    from headprune.files import write_text
    from headprune.lab.analysis.pictures import curve_picture, write_picture
    from headprune.structure import find_heads

    opened = open_task(data, model)
    task, rows = opened.task, opened.examples(split, examples, seed)
    made, shares = opened.batches(rows), [step / steps for step in range(steps + 1)]
    calibration = opened.inputs(opened.examples("train", rescore_examples, seed)) if rescore or checkpoints else []
    # Each run is a name for its curves, a model, and the orders to follow on it.
    runs = [("", model, _Orders(scores or (), range(seed, seed + random), calibration, rescore))]
    if checkpoints is not None:
        runs = [(path.name, str(path), _Orders((), (), calibration)) for path in _checkpoints(checkpoints)]
    found: dict[str, list[Curve]] = {}
    parts = _parts(components, loaded := opened.load_model(runs[0][1], device))
    with progress(sum(orders.count() for *_, orders in runs) * len(parts) * len(shares)) as step:
        ways: Any = {"shares": shares, "metric": task.metric.name, "unit": unit, "progress": step}
        for prefix, name, orders in runs:
            loaded = loaded if name == runs[0][1] else opened.load_model(name, device)
            heads = find_heads(loaded)
            measured = _Measured(loaded, heads, made, task, out / "unfinished", removed)
            for order, first, again in orders.of(loaded, heads):
                for part, within in parts.items():
                    line = pruning_curve(heads, first, measured, rescore=again, components=within, **ways)
                    found.setdefault(", ".join(filter(None, (part, prefix or order))), []).append(line)
    result = {**task.settings(), "split": split, "examples": len(rows), "seed": seed, "removed": removed}
    result |= {"curves": {name: [c.to_dict() for c in curves] for name, curves in found.items()}}
    write_text(out / "curve.json", json_module.dumps(result, indent=1))
    title = f"{task.name} {split}: {task.metric.name} as heads are {'removed' if removed else 'masked'}"
    page = write_picture(curve_picture(found, title=title), out / "curve", picture)
    shutil.rmtree(out / "unfinished", ignore_errors=True)
    if json:
        typer.echo(json_module.dumps(result, indent=1))
        return
    for name, curves in found.items():
        means = [sum(c.points[i].score for c in curves) / len(curves) for i in range(len(shares))]
        typer.echo(f"{name:24} " + " ".join(f"{mean:.3f}" for mean in means))
    typer.echo(f"{task.metric.name} at {', '.join(f'{share:.0%}' for share in shares)} pruned; {page}")


def _parts(components: str | None, model: Any) -> dict[str, list[str] | None]:
    """What to prune in: a name for the curves (where there are several) and the components."""
    from headprune.structure import find_heads

    if components == "each":
        return {component: [component] for component in find_heads(model).components}
    return {"": components.split(",") if components is not None else None}


class _Measured:
    """The metric with only some heads; what was measured before an interruption is not measured again."""

    def __init__(
        self, model: Any, heads: HeadMap, batches: list[Any], task: Task, unfinished: Path, removed: bool
    ) -> None:
        from headprune.files import WorkParts
        from headprune.scoring.resumable import work_key

        self.model, self.heads, self.batches, self.task, self.removed = model, heads, batches, task, removed
        options = {**task.settings(), "removed": removed}
        self.parts = WorkParts(unfinished, work_key(model, batches, options))

    def __call__(self, mask: HeadMask) -> float:
        known = self.parts.get(mask.to_json())
        if known is None:
            known = self._score(mask)
            self.parts.put(mask.to_json(), known)
        return float(known)

    def _score(self, mask: HeadMask) -> float:
        from headprune.surgery.prune import prune_
        from headprune.tasks import task

        if not self.removed:
            return task.evaluate(self.model, self.batches, self.task, mask=mask, heads=self.heads).score
        import copy

        return task.evaluate(prune_(copy.deepcopy(self.model), mask), self.batches, self.task).score


@dataclass(frozen=True)
class _Orders:
    """The orders to follow: of files, at random, and by sensitivity on calibration data, scored anew if asked."""

    files: Sequence[Path]
    seeds: Sequence[int]
    calibration: list[Any]
    rescore: bool = False

    def count(self) -> int:
        return len(self.files) + len(self.seeds) + bool(self.calibration)

    def of(self, model: Any, heads: HeadMap) -> list[tuple[str, HeadScores, Rescore | None]]:
        """Every order: its name, its first scores, and how to score anew after a step if it does."""
        from headprune.scoring import score

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


def _checkpoints(folder: Path) -> list[Path]:
    """The folders of a training run, in the order of their steps."""
    found = [path for path in folder.glob("*") if (path / "config.json").is_file()]
    if not found:
        raise DataError(f"'{folder}' holds no checkpoints. Train with --keep-checkpoints and give OUT/checkpoints.")
    return sorted(found, key=lambda path: [int(part) if part.isdecimal() else part for part in path.name.split("-")])
