"""`headprune evaluate`: the score of a model on a part of a task's data, alone or against another model."""

from __future__ import annotations

import json as json_module
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headprune.checkpoint.load_model import check_writable
from headprune.cli.options import Device, Json, Model, Seed, progress
from headprune.cli.widening import takes_task
from headprune.errors import DataError
from headprune.files import read_text
from headprune.jobs.options.task import TaskOptions
from headprune.stats import p_text
from headprune.tasks.data import TaskData, open_task
from headprune.typed_json import to_plain

if TYPE_CHECKING:
    from headprune.tasks import Evaluation


@takes_task()
def evaluate(
    model: Model,
    data: TaskOptions,
    out: Annotated[Path, typer.Option(help="Folder for evaluation.json, and for translations.")],
    split: Annotated[str, typer.Option(help="The part of the data to evaluate on.")] = "test",
    examples: Annotated[int, typer.Option(help="A random part of so many examples; 0 is all.")] = 0,
    mask: Annotated[Path | None, typer.Option(help="A mask file: with only these heads.")] = None,
    against: Annotated[
        str | None, typer.Option(help="Another model for the same task: is the difference more than chance?")
    ] = None,
    seed: Seed = 0,
    json: Json = False,
    device: Device = "cpu",
) -> None:
    """Score a model, with an interval; for translation, write the translations too."""
    check_writable(out)
    from headprune.files import write_text
    from headprune.stats import paired_bootstrap

    rivals = [name for name in (model, against) if name is not None]
    parts = {name: open_task(data, name) for name in rivals}  # each reads the text with its own tokenizer
    batches = {name: part.batches(part.examples(split, examples, seed)) for name, part in parts.items()}
    if against is not None and split == "train" and data.task == "translation":
        raise DataError(
            "Training pairs are left out by their length in tokens, which is not the same for two tokenizers: choose "
            "another part to compare models on."
        )
    with progress(sum(len(batches[name]) for name in rivals)) as step:
        found, result = _scored(parts[model], model, batches[model], device, mask, out, step)
        result |= {"split": split, "seed": seed}
        if against is not None:
            other, theirs = _scored(parts[against], against, batches[against], device, None, out / "against", step)
            gap = paired_bootstrap(other.rows, found.rows, statistic=found.metric.of, seed=seed)
            assert gap.interval is not None
            change = {"change": gap.difference, "interval": [gap.interval.low, gap.interval.high], "p": gap.p_value}
            result["against"] = {**theirs, **change, "method": gap.method}
    write_text(out / "evaluation.json", json_module.dumps(result, indent=1))
    if json:
        typer.echo(json_module.dumps(result, indent=1))
        return
    low, high = result["interval"]
    told = f"{result['metric']} {result['score']:.4f} ({low:.4f} to {high:.4f}) on {result['examples']} of {split}"
    if against is not None:
        other_row = result["against"]
        told += f"; {against} {other_row['score']:.4f}, change {other_row['change']:+.4f} ({p_text(other_row['p'])})"
    typer.echo(f"{told}; {result['examples_per_second']:.1f} examples a second; {out}")


def _scored(
    data: TaskData, name: str, batches: list[Any], device: str, mask: Path | None, out: Path, step: Any
) -> tuple[Evaluation, dict[str, Any]]:
    from headprune.heads import HeadMask
    from headprune.structure import find_heads
    from headprune.tasks import evaluate as evaluate_task

    model = data.load_model(name, device)
    heads = find_heads(model)
    chosen = HeadMask.from_json(read_text(mask, "mask"), heads) if mask is not None else None
    answers: list[tuple[Any, Any]] = []

    def keep(outputs: Any, batch: Any) -> None:
        if data.task.searches:  # others have nothing to read, and their logits would fill the memory
            answers.append((outputs, batch))

    def counted() -> Any:
        for batch in batches:
            step("evaluating")
            yield batch

    begun = time.perf_counter()
    found = evaluate_task(model, counted(), data.task, mask=chosen, heads=heads, keep=keep)
    seconds = time.perf_counter() - begun
    result = {
        **data.task.settings(),
        "heads": len(chosen) if chosen is not None else len(heads),
        **to_plain(found.summary()),
    }
    result |= {"seconds": seconds, "examples_per_second": len(found.rows) / seconds}
    return found, result | data.task.written(answers, out)
