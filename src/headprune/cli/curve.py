"""`headprune curve`: score against share pruned, in several orders."""

from __future__ import annotations

import json as json_module
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
    from headprune.resuming import Parts, work_key
    from headprune.sites import find_heads
    from headprune.tasks.classification import evaluate

    if steps < 1:
        raise DataError(f"--steps is {steps}; a curve needs at least one step.")
    data = TaskData.open(task, data_dir, (text, pair, label), model, batch_size, max_length)
    metric, rows = data.task.metric, data.examples(split)
    loaded, made = load_model(model, device), data.batches(rows)
    heads = find_heads(loaded)
    calibration = data.inputs(data.examples("train", rescore_examples, seed)) if rescore else []
    orders = _orders(loaded, heads, scores or [], range(seed, seed + random), calibration)
    parts = Parts(out / "unfinished", work_key(loaded, made, {"metric": metric}))

    def measured(mask: HeadMask) -> float:
        known = parts.get(mask.to_json())
        if known is None:
            known = evaluate(loaded, made, metric, mask=mask, heads=heads).score
            parts.put(mask.to_json(), known)
        return float(known)

    shares = [step / steps for step in range(steps + 1)]
    found: dict[str, list[Curve]] = {}
    with progress(len(orders) * len(shares)) as step:
        for name, order, again in orders:
            ways: Any = {"shares": shares, "metric": metric, "rescore": again, "progress": step}
            found.setdefault(name, []).append(pruning_curve(heads, order, measured, **ways))
    result = {"task": task, "split": split, "examples": len(rows), "seed": seed}
    result |= {"curves": {name: [c.to_dict() for c in curves] for name, curves in found.items()}}
    write_text(out / "curve.json", json_module.dumps(result, indent=1))
    write_page(curve_picture(found, title=f"{task} {split}: {metric} as heads are pruned"), out / "curve.html")
    parts.finished()
    if json:
        typer.echo(json_module.dumps(result, indent=1))
        return
    for name, curves in found.items():
        means = [sum(c.points[i].score for c in curves) / len(curves) for i in range(len(shares))]
        typer.echo(f"{name:24} " + " ".join(f"{mean:.3f}" for mean in means))
    typer.echo(f"{metric} at {', '.join(f'{share:.0%}' for share in shares)} pruned; {out / 'curve.html'}")


def _orders(
    model: Any, heads: HeadMap, files: list[Path], seeds: Iterable[int], calibration: list[Any]
) -> list[tuple[str, HeadScores, Any]]:
    """Every order to follow: its name, its first scores, and how to score anew after a step if it does."""
    from headprune.scoring import score

    orders: list[tuple[str, HeadScores, Any]] = []
    for path in files:
        read = read_scores(path)
        orders.append((read.method, read, None))
    orders += [("random", score(model, method="random", heads=heads, seed=seed), None) for seed in seeds]
    if calibration:

        def again(mask: HeadMask) -> HeadScores:
            return score(model, calibration, heads=heads, mask=mask)

        orders.append(("sensitivity, re-scored", score(model, calibration, heads=heads), again))
    if not orders:
        raise DataError("No order to follow: give --scores, --random or --rescore.")
    return orders
