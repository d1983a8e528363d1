"""`headprune score`: what each head is worth."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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


def score(
    model: Model,
    out: Annotated[Path, typer.Option(help="Folder for scores.json and a heat map.")],
    method: Annotated[
        str, typer.Option(help="sensitivity, fisher, ablation, all-but-one, output-norm, …")
    ] = "sensitivity",
    reduction: Annotated[str | None, typer.Option(help="For sensitivity: example, token or batch.")] = None,
    task: Task = "sst2",
    split: Annotated[str, typer.Option(help="The part of the data to score on.")] = "train",
    examples: Annotated[int, typer.Option(help="A random part of so many examples; 0 is all.")] = 0,
    data_dir: DataDir = None,
    text: TextColumn = None,
    pair: PairColumn = None,
    label: LabelColumn = None,
    batch_size: BatchSize = 16,
    max_length: MaxLength = 128,
    seed: Seed = 0,
    json: Json = False,
    device: Device = "cpu",
) -> None:
    """Score every head on a task's data. An interrupted run goes on where it stopped."""
    check_writable(out)
    from headprune.heads.files import write_text
    from headprune.pictures import heat_map, write_page
    from headprune.scoring.resumable import score_in_parts
    from headprune.sites import find_heads

    data = TaskData.open(task, data_dir, (text, pair, label), model, batch_size, max_length)
    rows = data.examples(split, examples, seed)
    loaded, made = load_model(model, device), data.inputs(rows)
    options = {"reduction": reduction} if reduction is not None else {}
    with progress(len(made)) as step:
        scores = score_in_parts(
            loaded, made, out / "unfinished", method=method, name=f"{task} {split}, {len(rows)} examples",
            seed=seed, progress=step, **options,
        )  # fmt: skip
    write_text(out / "scores.json", scores.to_json())
    write_page(
        heat_map(find_heads(loaded), scores.normalized(), title=f"{method} on {scores.data}", name=method),
        out / "scores.html",
    )
    if json:
        typer.echo(scores.to_json())
        return
    ranked = sorted(
        (value, f"{site}:{head}")
        for site, row in scores.normalized().items()
        for head, value in enumerate(row)
        if value is not None
    )
    low, high = ", ".join(n for _, n in ranked[:3]), ", ".join(n for _, n in ranked[::-1][:3])
    typer.echo(
        f"scored {len(ranked)} heads by {method} on {scores.data}; lowest {low}; highest {high}; {out / 'scores.html'}"
    )
