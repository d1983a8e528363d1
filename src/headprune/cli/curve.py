"""`headprune curve`: score against share pruned, in several orders."""

from __future__ import annotations

import json as json_module
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headprune.cli.choosing import read_scores
from headprune.cli.options import Device, Json, Model, Seed, check_writable, load_model, progress
from headprune.cli.taskdata import (
    BatchSize,
    DataDir,
    LabelColumn,
    MaxLength,
    PairColumn,
    Task,
    TaskData,
    TextColumn,
)
from headprune.errors import DataError

if TYPE_CHECKING:
    from headprune.heads import HeadMap, HeadMask, HeadScores


def curve(
    model: Model,
    out: Annotated[Path, typer.Option(help="Folder for curve.json and curve.html.")],
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
    task: Task = "sst2",
    split: Annotated[str, typer.Option(help="The part of the data to evaluate on.")] = "dev",
    data_dir: DataDir = None,
    text: TextColumn = None,
    pair: PairColumn = None,
    label: LabelColumn = None,
    batch_size: BatchSize = 32,
    max_length: MaxLength = 128,
    seed: Seed = 0,
    json: Json = False,
    device: Device = "cpu",
) -> None:
    """Draw how the score falls as more heads are switched off."""
    check_writable(out)
    from headprune.curves import Curve, pruning_curve
    from headprune.heads.files import write_text
    from headprune.pictures import curve_picture, write_page
    from headprune.sites import find_heads

    if steps < 1:
        raise DataError(f"--steps is {steps}; a curve needs at least one step.")
    data = TaskData.open(task, data_dir, (text, pair, label), model, batch_size, max_length)
    metric, rows = data.task.metric, data.examples(split)
    made, shares = data.batches(rows), [step / steps for step in range(steps + 1)]
    calibration = data.inputs(data.examples("train", rescore_examples, seed)) if rescore or checkpoints else []
    runs: list[tuple[str, str, Any]] = []  # name, model, its orders
    if checkpoints is not None:
        runs = [(path.name, str(path), (None, (), calibration, False)) for path in _checkpoints(checkpoints)]
    else:
        runs = [("", model, (scores, range(seed, seed + random), calibration, rescore))]
    found: dict[str, list[Curve]] = {}
    orders = 1 if checkpoints is not None else len(scores or ()) + random + rescore
    with progress(len(runs) * orders * len(shares)) as step:
        for prefix, name, chosen in runs:
            loaded = load_model(name, device)
            heads = find_heads(loaded)
            measured = _Measured(loaded, heads, made, metric, out / "unfinished")
            for order, first, again in _orders(loaded, heads, *chosen):
                ways: Any = {"shares": shares, "metric": metric, "rescore": again, "progress": step}
                line = pruning_curve(heads, first, measured, **ways)
                found.setdefault(prefix or order, []).append(line)
    result = {"task": task, "split": split, "examples": len(rows), "seed": seed}
    result |= {"curves": {name: [c.to_dict() for c in curves] for name, curves in found.items()}}
    write_text(out / "curve.json", json_module.dumps(result, indent=1))
    write_page(curve_picture(found, title=f"{task} {split}: {metric} as heads are pruned"), out / "curve.html")
    shutil.rmtree(out / "unfinished", ignore_errors=True)
    if json:
        typer.echo(json_module.dumps(result, indent=1))
        return
    for name, curves in found.items():
        means = [sum(c.points[i].score for c in curves) / len(curves) for i in range(len(shares))]
        typer.echo(f"{name:24} " + " ".join(f"{mean:.3f}" for mean in means))
    typer.echo(f"{metric} at {', '.join(f'{share:.0%}' for share in shares)} pruned; {out / 'curve.html'}")


class _Measured:
    """The metric under a mask; what was measured before an interruption is not measured again."""

    def __init__(self, model: Any, heads: HeadMap, batches: list[Any], metric: str, unfinished: Path) -> None:
        from headprune.resuming import Parts, work_key

        self.model, self.heads, self.batches, self.metric = model, heads, batches, metric
        self.parts = Parts(unfinished, work_key(model, batches, {"metric": metric}))

    def __call__(self, mask: HeadMask) -> float:
        from headprune.tasks import classification

        known = self.parts.get(mask.to_json())
        if known is None:
            known = classification.evaluate(self.model, self.batches, self.metric, mask=mask, heads=self.heads).score
            self.parts.put(mask.to_json(), known)
        return float(known)


def _orders(
    model: Any, heads: HeadMap, files: list[Path] | None, seeds: Iterable[int], calibration: list[Any], rescore: bool
) -> list[tuple[str, HeadScores, Any]]:
    """Every order to follow: its name, its first scores, and how to score anew after a step if it does."""
    from headprune.scoring import score

    def scored(mask: HeadMask | None = None) -> HeadScores:
        return score(model, calibration, heads=heads, mask=mask)

    orders: list[tuple[str, HeadScores, Any]] = []
    for path in files or ():
        read = read_scores(path)
        orders.append((read.method, read, None))
    orders += [("random", score(model, method="random", heads=heads, seed=seed), None) for seed in seeds]
    if calibration:
        orders.append(("sensitivity, re-scored" if rescore else "sensitivity", scored(), scored if rescore else None))
    if not orders:
        raise DataError("No order to follow: give --scores, --random or --rescore.")
    return orders


def _checkpoints(folder: Path) -> list[Path]:
    """The folders of a training run, in the order of their steps."""
    found = [path for path in folder.glob("*") if (path / "config.json").is_file()]
    if not found:
        raise DataError(f"'{folder}' holds no checkpoints. Train with --keep-checkpoints and give OUT/checkpoints.")
    return sorted(found, key=lambda path: [int(part) if part.isdecimal() else part for part in path.name.split("-")])
