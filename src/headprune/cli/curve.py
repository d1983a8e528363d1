"""`headprune curve`: score against share pruned, in several orders."""

from __future__ import annotations

import json as json_module
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
    TextColumn,
    batches,
    load_tokenizer,
    task_folder,
    without_rows,
)
from headprune.errors import DataError

if TYPE_CHECKING:
    from headprune.heads import HeadMask, HeadScores


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
    from headprune.scoring import score
    from headprune.sites import find_heads
    from headprune.tasks import find_task
    from headprune.tasks.classification import evaluate

    if steps < 1:
        raise DataError(f"--steps is {steps}; a curve needs at least one step.")
    known = find_task(task, text=text, pair=pair, label=label)
    folder = task_folder(task, data_dir)
    rows = known.load(folder, split)
    loaded = load_model(model, device)
    heads = find_heads(loaded)
    tokenizer = load_tokenizer(model)
    made = batches(rows, tokenizer, known, batch_size, max_length)
    orders: list[tuple[str, HeadScores, Any]] = []
    for path in scores or ():
        read = read_scores(path)
        orders.append((read.method, read, None))
    for number in range(random):
        orders.append(("random", score(loaded, method="random", heads=heads, seed=seed + number), None))
    if rescore:
        part = known.load(folder, "train").sample(rescore_examples, seed)
        calibration = without_rows(batches(part, tokenizer, known, batch_size, max_length))

        def again(mask: HeadMask) -> HeadScores:
            return score(loaded, calibration, heads=heads, mask=mask)

        orders.append(("sensitivity, re-scored", score(loaded, calibration, heads=heads), again))
    if not orders:
        raise DataError("No order to follow: give --scores, --random or --rescore.")
    known_scores: dict[HeadMask, float] = {}

    def measured(mask: HeadMask) -> float:
        if mask not in known_scores:
            known_scores[mask] = evaluate(loaded, made, known.metric, mask=mask, heads=heads).score
        return known_scores[mask]

    shares = [step / steps for step in range(steps + 1)]
    found: dict[str, list[Curve]] = {}
    with progress(len(orders) * len(shares)) as step:
        for name, order, rescorer in orders:
            made_curve = pruning_curve(
                heads, order, measured, shares=shares, metric=known.metric, rescore=rescorer, progress=step
            )
            found.setdefault(name, []).append(made_curve)
    result = {"task": task, "split": split, "examples": len(rows), "seed": seed}
    result |= {"curves": {name: [c.to_dict() for c in curves] for name, curves in found.items()}}
    write_text(out / "curve.json", json_module.dumps(result, indent=1))
    write_page(curve_picture(found, title=f"{task} {split}: {known.metric} as heads are pruned"), out / "curve.html")
    if json:
        typer.echo(json_module.dumps(result, indent=1))
        return
    for name, curves in found.items():
        means = [sum(c.points[i].score for c in curves) / len(curves) for i in range(len(shares))]
        typer.echo(f"{name:24} " + " ".join(f"{mean:.3f}" for mean in means))
    typer.echo(f"{known.metric} at {', '.join(f'{share:.0%}' for share in shares)} pruned; {out / 'curve.html'}")
