"""`headprune finetune`: a classifier to start from, or a pruned one to repair."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import Annotated, Any

import typer

from headprune.cli.choosing import read_text
from headprune.cli.options import Device, Json, Model, Seed, check_writable, load_model
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


def finetune(
    model: Model,
    out: Annotated[Path, typer.Option(help="Folder for the fine-tuned model.")],
    task: Task = "sst2",
    data_dir: DataDir = None,
    text: TextColumn = None,
    pair: PairColumn = None,
    label: LabelColumn = None,
    mask: Annotated[Path | None, typer.Option(help="A mask file: prune to these heads first, then train.")] = None,
    teacher: Annotated[str | None, typer.Option(help="A model whose answers to follow as well (distillation).")] = None,
    keep_checkpoints: Annotated[
        bool, typer.Option("--keep-checkpoints", help="Keep the checkpoint of every epoch, not only the last.")
    ] = False,
    epochs: Annotated[float, typer.Option(help="Passes over the training data.")] = 3.0,
    learning_rate: Annotated[float, typer.Option("--lr", help="Peak learning rate.")] = 2e-5,
    batch_size: BatchSize = 32,
    max_length: MaxLength = 128,
    seed: Seed = 42,
    json: Json = False,
    device: Device = "cpu",
) -> None:
    """Train a classifier through transformers' Trainer; an interrupted run goes on where it stopped."""
    check_writable(out)
    from headprune.heads import HeadMask
    from headprune.heads.files import write_text
    from headprune.sites import find_heads
    from headprune.surgery.prune import prune_
    from headprune.tasks.classification import evaluate
    from headprune.tasks.finetune import Recipe
    from headprune.tasks.finetune import finetune as train

    data = TaskData.open(task, data_dir, (text, pair, label), model, batch_size, max_length)
    known, tokenizer = data.task, data.tokenizer
    examples, dev = data.examples("train"), data.examples("dev")
    recipe = Recipe(epochs=epochs, learning_rate=learning_rate, batch_size=batch_size, max_length=max_length, seed=seed)
    learner = _classifier(model, known.num_labels, device, seed)
    if mask is not None:
        heads = find_heads(learner)
        prune_(learner, HeadMask.from_json(read_text(mask, "mask"), heads), about={"by": f"mask {mask.name}"})
    guide = load_model(teacher, device) if teacher is not None else None
    ways: Any = {"teacher": guide, "keep_checkpoints": keep_checkpoints, "quiet": json}
    trained = train(learner, tokenizer, known, examples, out / "checkpoints", recipe, **ways)
    trained.save_pretrained(out)  # type: ignore[operator]
    tokenizer.save_pretrained(out)
    found = evaluate(trained, data.batches(dev), known.metric)
    result = {"task": task, "recipe": recipe.to_dict(), "train_examples": len(examples), "dev": described(found)}
    write_text(out / "finetune.json", json_module.dumps(result, indent=1))
    if json:
        typer.echo(json_module.dumps(result, indent=1))
    else:
        low, high = found.interval().low, found.interval().high
        typer.echo(
            f"{known.metric} {found.score:.4f} ({low:.4f} to {high:.4f}) on {len(dev)} dev examples; saved to {out}"
        )


def _classifier(name: str, num_labels: int, device: str, seed: int):  # type: ignore[no-untyped-def]  # noqa: ANN202
    import torch
    from transformers import AutoModelForSequenceClassification

    torch.manual_seed(seed)  # the new classification head is random
    return AutoModelForSequenceClassification.from_pretrained(name, num_labels=num_labels).to(device)
