"""`headprune ablate`: the metric without each head, with honest error bars."""

from __future__ import annotations

import json as json_module
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headprune.checkpoint.load_model import check_writable
from headprune.cli.options import Device, Json, Model, Picture, Seed, progress
from headprune.cli.widening import takes_task
from headprune.errors import DataError
from headprune.jobs.options.task import TaskOptions
from headprune.stats import p_text
from headprune.tasks.data import open_task
from headprune.typed_json import to_plain

if TYPE_CHECKING:
    from headprune.heads import HeadMap
    from headprune.tasks.ablations import MetricAblation


@takes_task()
def ablate(
    model: Model,
    data: TaskOptions,
    out: Annotated[
        Path, typer.Option(help="Folder for ablation.json, scores.json (an order to prune in) and pictures.")
    ],
    all_but_one: Annotated[
        bool, typer.Option("--all-but-one", help="Keep only the head in its layer, instead of masking it.")
    ] = False,
    split: Annotated[str, typer.Option(help="The part of the data to evaluate on.")] = "dev",
    examples: Annotated[int, typer.Option(help="A random part of so many examples; 0 is all.")] = 0,
    against: Annotated[
        str | None, typer.Option(help="A second part, such as dev-mm or dev-out: do the same heads matter there?")
    ] = None,
    choose_on: Annotated[
        str | None,
        typer.Option(help="With --all-but-one: choose the best head of each layer on this part, such as train."),
    ] = None,
    choose_examples: Annotated[int, typer.Option(help="A random part of so many examples to choose on.")] = 5000,
    seed: Seed = 0,
    picture: Picture = "html",
    json: Json = False,
    device: Device = "cpu",
) -> None:
    """Mask every head in turn and tell which changes of the metric are more than chance."""
    check_writable(out)
    if choose_on is not None and not all_but_one:
        raise DataError("--choose-on looks for the one head that a layer can do with: give --all-but-one as well.")
    from headprune.files import write_text
    from headprune.lab.analysis.pictures import scatter, write_picture
    from headprune.structure import find_heads
    from headprune.tasks.ablations import ablate_metric, best_single_heads

    opened = open_task(data, model)
    task, loaded = opened.task, opened.load_model(model, device)
    parts = {"split": opened.batches(opened.examples(split, examples, seed))}
    if against is not None:
        parts["against"] = opened.batches(opened.examples(against))
    if choose_on is not None:
        parts["choose"] = opened.batches(opened.examples(choose_on, choose_examples, seed))
    unfinished = out / "unfinished"
    with progress(sum(len(batches) for batches in parts.values())) as step:
        ways: Any = {"all_but_one": all_but_one, "seed": seed, "folder": unfinished, "progress": step}
        results = {name: ablate_metric(loaded, batches, task, **ways) for name, batches in parts.items()}
    found, other, chooser = results["split"], results.get("against"), results.get("choose")
    result: dict[str, Any] = {
        **task.settings(), "split": split, "all_but_one": all_but_one, "seed": seed,
        "base": to_plain(found.base.summary()),
        "encoder_passes_saved" if task.searches else "share_reused": found.share_reused,
        "components": _by_component(found, find_heads(loaded)),
        "heads": {str(head): row for head, row in found.rows.items()},
    }  # fmt: skip
    if other is not None:
        result["against"] = {"split": against, "base": to_plain(other.base.summary()), **_compared(found, other)}
        names = [str(head) for head in found.rows]
        pairs = [[rows[head]["score"] for head in found.rows] for rows in (found.rows, other.rows)]
        title = f"{task.metric.name} without each head"
        drawn = scatter(pairs[0], pairs[1], names, title=title, x=split, y=str(against))
        write_picture(drawn, out / "scatter", picture)
    if chooser is not None:
        result["best_single"] = {
            "chosen_on": choose_on,
            "examples": len(chooser.base.rows),
            "sites": best_single_heads(chooser, found),
        }
    write_text(out / "ablation.json", json_module.dumps(result, indent=1))
    if not all_but_one:
        write_text(out / "scores.json", found.scores(find_heads(loaded), f"{task.name} {split}").to_json())
    page = _draw(found, find_heads(loaded), f"{task.name} {split}: change of {task.metric.name}", out, picture)
    shutil.rmtree(unfinished, ignore_errors=True)
    if json:
        typer.echo(json_module.dumps(result, indent=1))
        return
    if other is not None:
        typer.echo(f"{split} and {against}: {_told(result['against'])}")
    for site, row in result.get("best_single", {}).get("sites", {}).items():
        typer.echo(
            f"{site} with only head {row['head']}: {row['score']:.4f} ({row['change']:+.4f}, {p_text(row['p'])})"
        )
    for component, row in result["components"].items() if len(result["components"]) > 1 else ():
        typer.echo(f"{component}: {_component_told(row)}")
    scores = [row["score"] for row in found.rows.values()]
    changed = "with one head in its layer" if all_but_one else "without one"
    counts = {name: sum(row[name] < SIGNIFICANT for row in found.rows.values()) for name in TESTS}
    typer.echo(
        f"{task.metric.name} {found.base.score:.4f} with all heads; {changed}: {min(scores):.4f} to "
        f"{max(scores):.4f}; p < 0.01 for {counts['p']} of {len(scores)} heads ({counts['p_holm']} after Holm, "
        f"{counts['p_bh']} after Benjamini-Hochberg); {page}"
    )


SIGNIFICANT = 0.01  # Michel et al.'s threshold
TESTS = ("p", "p_holm", "p_bh")


def _by_component(found: MetricAblation, heads: HeadMap) -> dict[str, Any]:
    """Heads, the range of changes, and how many changes are more than chance, for each component."""
    told: dict[str, Any] = {}
    for component in heads.components:
        rows = [row for head, row in found.rows.items() if heads[head.site].component == component]
        if not rows:
            continue  # every head of it was removed before
        told[component] = {
            "heads": len(rows),
            "lowest": min(row["change"] for row in rows),
            "highest": max(row["change"] for row in rows),
            "significant": {test: sum(row[test] < SIGNIFICANT for row in rows) for test in TESTS},
        }
    return told


def _component_told(row: dict[str, Any]) -> str:
    counts = row["significant"]
    return (
        f"changes {row['lowest']:+.4f} to {row['highest']:+.4f}; p < {SIGNIFICANT} for {counts['p']} of {row['heads']} "
        f"heads ({counts['p_holm']} after Holm, {counts['p_bh']} after Benjamini-Hochberg)"
    )


def _draw(found: MetricAblation, heads: HeadMap, title: str, out: Path, kind: str) -> Path:
    """The change by head, and how many heads have which score (Michel et al., Figure 1)."""
    from headprune.lab.analysis.pictures import heat_map, histogram, write_picture

    changes = {site.id: [found.change(site.id, head) for head in range(site.original_num_heads)] for site in heads}
    scores = [row["score"] for row in found.rows.values()]
    bars = histogram(scores, title=title, name=found.base.metric.name, reference=found.base.score)
    write_picture(bars, out / "histogram", kind)
    return write_picture(heat_map(heads, changes, title=title, name="change"), out / "ablation", kind)


def _compared(first: MetricAblation, second: MetricAblation) -> dict[str, Any]:
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
