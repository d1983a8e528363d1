"""`headprune demo`: the whole job on a small real model and real reviews, with no network."""

from __future__ import annotations

import contextlib
import io
import json as json_module
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from headprune.checkpoint.load_model import check_writable, load_model
from headprune.cli.options import Json, Seed, state
from headprune.heads.picture import head_text
from headprune.lab.models.demo import demo_model, demo_reviews

COLUMNS = ("--task", "reviews", "--text", "text", "--label", "label", "--max-length", "64")


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the models, the data and the page.")] = Path("demo-out"),
    train: Annotated[int, typer.Option(help="Reviews to learn from.")] = 2400,
    dev: Annotated[int, typer.Option(help="Reviews to evaluate on.")] = 600,
    epochs: Annotated[float, typer.Option(help="Passes over the training data.")] = 2.0,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Fine-tune MiniLM on film reviews, score its heads, draw the curve, prune, save, reload, compare and time."""
    check_writable(out)
    data, tuned, small = out / "data", out / "tuned", out / "small"
    settings = {"train": train, "dev": dev, "epochs": epochs, "seed": seed}
    _write_reviews(data, train, dev, seed)
    task, scores = ("--data-dir", data, *COLUMNS), out / "scores" / "scores.json"
    steps: list[Sequence[Any]] = [
        ("score", tuned, *task, "--examples", min(train, 1000), "--out", out / "scores"),
        ("curve", tuned, *task, "--scores", scores, "--random", 2, "--out", out / "curve"),
        ("prune", tuned, *task, "--scores", scores, "--max-drop", "1.0", "--out", small),
    ]
    _clear_unless(tuned, settings)
    if not (tuned / "finetune.json").is_file():
        steps.insert(0, ("finetune", demo_model(), *task, "--lr", "1e-4", "--epochs", epochs, "--seed", seed,
                         "--out", tuned))  # fmt: skip
    for words in steps:
        _run(words, quiet=json)
    result = {"model": "all-MiniLM-L6-v2", "data": "Rotten Tomatoes sentences", **settings, **_compared(tuned, small)}
    result["page"] = str(_write_page(out, result))
    from headprune.files import write_text

    write_text(out / "demo.json", json_module.dumps(result, indent=1))
    if json:
        typer.echo(json_module.dumps(result, indent=1))
        return
    from headprune.structure import find_heads

    typer.echo(f"\nheads left (■ kept, · removed):\n\n{head_text(find_heads(load_model(str(small), 'cpu')))}\n")
    for name, value in _told(result):
        typer.echo(f"{name:12}{value}")
    typer.echo(f"\nopen {result['page']} to see which heads matter and how far pruning goes")


def _run(words: Sequence[Any], quiet: bool) -> None:
    """One of our own commands, shown as a person would type it."""
    from headprune.cli.app import app

    texts = [*(["--debug"] if state.debug else []), *(str(word) for word in words)]
    if quiet:
        with contextlib.redirect_stdout(io.StringIO()):
            app([*texts, "--json"] if words[0] == "finetune" else texts, standalone_mode=False)
        return
    typer.secho(f"$ headprune {shlex.join(texts)}", fg="bright_black")
    app(texts, standalone_mode=False)


def _write_reviews(folder: Path, train: int, dev: int, seed: int) -> None:
    """train.csv and dev.csv: different sentences of Rotten Tomatoes reviews."""
    import csv

    import numpy as np

    with demo_reviews().open(encoding="utf-8", newline="") as file:
        rows = {row["text"]: row["label"] for row in csv.DictReader(file) if row["source"] == "rotten_tomatoes"}
    texts = list(rows)
    order = np.random.default_rng(seed).permutation(len(texts))[: train + dev]
    folder.mkdir(parents=True, exist_ok=True)
    for name, part in (("train", order[:train]), ("dev", order[train:])):
        with (folder / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerows([("text", "label"), *((texts[row], rows[texts[row]]) for row in part)])


def _clear_unless(tuned: Path, settings: dict[str, Any]) -> None:
    """Keep a model, finished or not, of an earlier demo with the same settings; what others left is in the way."""
    import shutil

    note, text = tuned.with_name("settings.json"), json_module.dumps(settings)
    if not note.is_file() or note.read_text() != text:
        shutil.rmtree(tuned, ignore_errors=True)
        note.write_text(text)


def _compared(tuned: Path, small: Path) -> dict[str, Any]:
    """The pruned model, loaded again, against the tuned one with the same heads masked; size and speed."""
    import torch

    from headprune.cost.measurement import measure
    from headprune.heads import HeadMask
    from headprune.masking import masked
    from headprune.structure import find_heads
    from headprune.structure.run import example_inputs

    before, after = load_model(str(tuned), "cpu"), load_model(str(small), "cpu")
    heads, left = find_heads(before), find_heads(after)
    mask = HeadMask.from_dict(heads, {site.id: list(site.kept) for site in left})
    batch = example_inputs(before, batch=4, length=32)
    with torch.no_grad(), masked(before, mask):
        expected = before(**batch).logits
    with torch.no_grad():
        gap = float((after(**batch).logits - expected).abs().max())
    sizes = [measure(model, batch=8, length=64, repeats=0) for model in (before, after)]
    timing = measure(after, batch=8, length=64, against=before, repeats=9).timing
    return {
        "heads": [len(heads), len(left)],
        "parameters": [size.parameters.total for size in sizes],
        "macs": [size.macs.total for size in sizes],
        "largest_difference_from_masked": gap,
        "timing": asdict(timing) if timing else None,
        "out": str(small),
    }


def _told(result: dict[str, Any]) -> list[tuple[str, str]]:
    (heads, left), timing = result["heads"], result["timing"]
    parameters, macs = ([value / 1e6 for value in result[name]] for name in ("parameters", "macs"))
    return [
        ("heads", f"{heads} -> {left}; the reloaded model equals the masked one "
                  f"({result['largest_difference_from_masked']:.0e})"),
        ("parameters", f"{parameters[0]:.1f} M -> {parameters[1]:.1f} M"),
        ("MACs", f"{macs[0] / 1e3:.2f} G -> {macs[1] / 1e3:.2f} G (batch 8, length 64)"),
        ("speed", f"{timing['speedup']:.2f} times the original's (median of {timing['repeats']} interleaved rounds; "
                  f"same model against itself: {timing['control']:.2f})"),
        ("saved to", str(result["out"])),
    ]  # fmt: skip


def _write_page(out: Path, result: dict[str, Any]) -> Path:
    """One page: what was cut and what it bought, the heat map of scores, the curves."""
    from headprune.budgets.curves import Curve
    from headprune.heads.stored import read_scores
    from headprune.lab.analysis.pictures import curve_picture, heat_map, write_page
    from headprune.structure import find_heads

    scores = read_scores(out / "scores" / "scores.json")
    stored = json_module.loads((out / "curve" / "curve.json").read_text())["curves"]
    curves = {name: [Curve.from_dict(run) for run in runs] for name, runs in stored.items()}
    before, after = (find_heads(load_model(str(out / name), "cpu")) for name in ("tuned", "small"))
    kept: dict[str, list[float | None]] = {
        site.id: [float(head in site.kept) for head in range(site.original_num_heads)] for site in after
    }
    figures = [
        heat_map(before, scores.normalized(), title=f"What each head is worth: {scores.method}", name=scores.method),
        heat_map(before, kept, title="Which heads were kept (1) and removed (0)", name="kept"),
        curve_picture(curves, title="Accuracy on the dev reviews as heads are masked"),
    ]
    return write_page(figures, out / "index.html", title="headprune demo: MiniLM on film reviews", facts=_told(result))
