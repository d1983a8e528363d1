"""`headprune ablate`: the metric without each head, with honest error bars."""

from __future__ import annotations

import json as json_module
import shutil
from pathlib import Path
from typing import Annotated, Any

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
    described,
)
from headprune.errors import DataError


def ablate(
    model: Model,
    out: Annotated[Path, typer.Option(help="Folder for ablation.json and two pictures.")],
    all_but_one: Annotated[
        bool, typer.Option("--all-but-one", help="Keep only the head in its layer, instead of masking it.")
    ] = False,
    task: Task = "sst2",
    split: Annotated[str, typer.Option(help="The part of the data to evaluate on.")] = "dev",
    against: Annotated[
        str | None, typer.Option(help="A second part, such as dev-mm or dev-out: do the same heads matter there?")
    ] = None,
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
    """Mask every head in turn and tell which changes of the metric are more than chance."""
    check_writable(out)
    from headprune.heads.files import write_text
    from headprune.pictures import heat_map, histogram, scatter, write_page
    from headprune.sites import find_heads
    from headprune.tasks.ablations import ablate_metric

    data = TaskData.open(task, data_dir, (text, pair, label), model, batch_size, max_length)
    known, loaded = data.task, load_model(model, device)
    made = data.batches(data.examples(split))
    second = data.batches(data.examples(against)) if against is not None else []
    unfinished = out / "unfinished"
    ways: Any = {"all_but_one": all_but_one, "seed": seed, "folder": unfinished}
    with progress(len(made) + len(second)) as step:
        found = ablate_metric(loaded, made, known.metric, progress=step, **ways)
        other = ablate_metric(loaded, second, known.metric, progress=step, **ways) if second else None
    heads = find_heads(loaded)
    result: dict[str, Any] = {
        "task": task, "split": split, "all_but_one": all_but_one, "seed": seed, "base": described(found.base),
        "share_reused": found.share_reused, "heads": {str(head): row for head, row in found.rows.items()},
    }  # fmt: skip
    if other is not None:
        result["against"] = {"split": against, "base": described(other.base), **_compared(found, other)}
        names = [str(head) for head in found.rows]
        pairs = [[rows[head]["score"] for head in found.rows] for rows in (found.rows, other.rows)]
        picture = scatter(pairs[0], pairs[1], names, title=f"{known.metric} without each head", x=split, y=str(against))
        write_page(picture, out / "scatter.html")
    write_text(out / "ablation.json", json_module.dumps(result, indent=1))
    changes = {s.id: [found.change(s.id, head) for head in range(s.original_num_heads)] for s in heads}
    title = f"{task} {split}: change of {known.metric}"
    write_page(heat_map(heads, changes, title=title, name="change"), out / "ablation.html")
    scores = [row["score"] for row in found.rows.values()]
    write_page(histogram(scores, title=title, name=known.metric, reference=found.base.score), out / "histogram.html")
    shutil.rmtree(unfinished, ignore_errors=True)
    if json:
        typer.echo(json_module.dumps(result, indent=1))
        return
    if other is not None:
        typer.echo(f"{split} and {against}: {_told(result['against'])}; {out / 'scatter.html'}")
    counts = {name: sum(row[name] < 0.01 for row in found.rows.values()) for name in ("p", "p_holm", "p_bh")}
    typer.echo(
        f"{known.metric} {found.base.score:.4f} with all heads; without one: {min(scores):.4f} to {max(scores):.4f}; "
        f"p < 0.01 for {counts['p']} of {len(scores)} heads ({counts['p_holm']} after Holm, {counts['p_bh']} after "
        f"Benjamini-Hochberg); {out / 'ablation.html'}"
    )


def _compared(first: Any, second: Any) -> dict[str, Any]:
    """How alike the ablations on two data sets are (Michel et al., Figure 2), and every head's score on the second."""
    from dataclasses import asdict

    from headprune.stats import correlation

    scores = [[rows[head]["score"] for head in first.rows] for rows in (first.rows, second.rows)]
    try:
        alike: dict[str, Any] = asdict(correlation(*scores))
    except DataError:  # no head changes the metric on one of them: there is nothing to correlate
        alike = dict.fromkeys(("pearson", "pearson_p", "spearman", "spearman_p"))
    return {**alike, "n": len(scores[0]), "scores": {str(head): row["score"] for head, row in second.rows.items()}}


def _told(same: dict[str, Any]) -> str:
    if same["pearson"] is None:
        return "no head changes the metric on one of them"
    rho = f"Spearman {same['spearman']:.2f} (p {same['spearman_p']:.1e})"
    return f"Pearson r {same['pearson']:.2f} (p {same['pearson_p']:.1e}), {rho} over {same['n']} heads"
