"""`headprune score`: what each head is worth."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headprune.checkpoint.load_model import check_writable
from headprune.cli.options import Device, Json, Model, Parts, Picture, Seed, progress
from headprune.cli.widening import takes_task
from headprune.heads.stored import read_scores
from headprune.jobs.options.task import TaskOptions
from headprune.structure.find import find_parts
from headprune.tasks.data import open_task

if TYPE_CHECKING:
    from headprune.heads import HeadMap, HeadScores


@takes_task(batch_size=16)
def score(
    model: Model,
    data: TaskOptions,
    out: Annotated[Path, typer.Option(help="Folder for scores.json and a heat map.")],
    method: Annotated[
        str, typer.Option(help="sensitivity, fisher, ablation, all-but-one, output-norm, …")
    ] = "sensitivity",
    reduction: Annotated[str | None, typer.Option(help="For sensitivity: example, token or batch.")] = None,
    loss: Annotated[
        str, typer.Option(help="Of an example's tokens: mean, or sum as in Michel et al.'s translation code.")
    ] = "mean",
    split: Annotated[str, typer.Option(help="The part of the data to score on.")] = "train",
    examples: Annotated[int, typer.Option(help="A random part of so many examples; 0 is all.")] = 0,
    parts: Parts = "heads",
    against: Annotated[
        list[Path] | None, typer.Option(help="Other scores of this model: do they see the same heads? Repeatable.")
    ] = None,
    seed: Seed = 0,
    picture: Picture = "html",
    json: Json = False,
    device: Device = "cpu",
) -> None:
    """Score every head on a task's data. An interrupted run goes on where it stopped."""
    check_writable(out)
    from headprune.files import write_text
    from headprune.lab.analysis.pictures import heat_map, write_picture
    from headprune.scoring.resumable import score_in_parts

    others = [read_scores(path) for path in against or ()]
    opened = open_task(data, model)
    rows = opened.examples(split, examples, seed)
    loaded, made = opened.load_model(model, device), opened.inputs(rows)
    options: dict[str, Any] = {"reduction": reduction} if reduction is not None else {}
    if loss != "mean":
        options["loss"] = loss
    _, heads = find_parts(loaded, parts)
    name = f"{data.task} {split}, {len(rows)} examples"
    with progress(len(made)) as step:
        scores = score_in_parts(
            loaded, made, out / "unfinished", heads=heads, method=method, name=name, seed=seed, progress=step, **options
        )
    write_text(out / "scores.json", scores.to_json())
    drawn = heat_map(heads, scores.normalized(), title=f"{method} on {scores.data}", name=method)
    page = write_picture(drawn, out / "scores", picture)
    alike = [_alike(heads, scores, other) for other in others]
    if alike:
        write_text(out / "agreement.json", json_module.dumps(alike, indent=1))
    if json:
        typer.echo(scores.to_json())
        return
    for row in alike:
        shares = ", ".join(f"{share:.0%} of those kept at {kept}" for kept, share in row["overlap"].items())
        typer.echo(f"{method} and {row['with']}: Spearman {row['spearman']:.2f} (p {row['spearman_p']:.1e}); {shares}")
    ranked = sorted(
        (value, f"{site}:{head}")
        for site, line in scores.normalized().items()
        for head, value in enumerate(line)
        if value is not None
    )
    low, high = ", ".join(n for _, n in ranked[:3]), ", ".join(n for _, n in ranked[::-1][:3])
    what = "heads and neurons" if parts == "both" else parts
    typer.echo(f"scored {len(ranked)} {what} by {method} on {scores.data}; lowest {low}; highest {high}; {page}")


def _alike(heads: HeadMap, scores: HeadScores, other: HeadScores) -> dict[str, Any]:
    from dataclasses import asdict

    from headprune.lab.analysis.agreement import agreement

    found = agreement(heads, scores, other)
    overlap = {f"{share:.0%}": value for share, value in found.overlap.items()}
    return {"with": f"{other.method} on {other.data}", **asdict(found.correlation), "overlap": overlap}
