"""`headprune finetune`: a model for a task to start from, or a pruned one to repair."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import Annotated, Any

import typer

from headprune.checkpoint.load_model import check_writable, load_model, model_class
from headprune.cli.options import Device, Json, Model, Seed
from headprune.cli.widening import takes, takes_task
from headprune.errors import CheckpointError
from headprune.jobs.options.task import TaskOptions
from headprune.jobs.options.training import Tests, TrainingOptions
from headprune.structure.find import heads_left
from headprune.tasks.data import open_new_task
from headprune.tasks.finetune import cut_to_mask_
from headprune.tasks.processor import match_padding_
from headprune.typed_json import to_plain


@takes(TrainingOptions, "training", epochs=3.0, lr=2e-5)
@takes_task()
def finetune(
    model: Model,
    data: TaskOptions,
    training: TrainingOptions,
    out: Annotated[Path, typer.Option(help="Folder for the fine-tuned model.")],
    mask: Annotated[Path | None, typer.Option(help="A mask file: prune to these heads first, then train.")] = None,
    teacher: Annotated[str | None, typer.Option(help="A model whose answers to follow as well (distillation).")] = None,
    from_scratch: Annotated[
        bool, typer.Option("--from-scratch", help="Start from random weights instead of the model's (Voita, Table 2).")
    ] = False,
    keep_checkpoints: Annotated[
        bool, typer.Option("--keep-checkpoints", help="Keep the checkpoint of every epoch, not only the last.")
    ] = False,
    test: Tests = None,
    seed: Seed = 42,
    json: Json = False,
    device: Device = "cpu",
) -> None:
    """Train a model through transformers' Trainer; an interrupted run goes on where it stopped."""
    check_writable(out, model)
    from headprune.files import write_text
    from headprune.tasks import evaluate
    from headprune.tasks.finetune import finetune as train
    from headprune.tasks.processes import is_main_process
    from headprune.tasks.recipe import Recipe

    opened = open_new_task(data, model)
    task = opened.task
    examples, dev = opened.examples("train"), opened.examples("dev")
    tests = {name: opened.batches(opened.examples(name)) for name in test or ()}
    recipe = Recipe(seed=seed, batch_size=data.batch_size, max_length=data.max_length).with_options(training)
    learner = match_padding_(new_model(model, task, device, seed, from_scratch=from_scratch), opened.processor)
    if mask is not None:
        cut_to_mask_(learner, mask)
    guide = _teacher(teacher, learner, opened.processor, device) if teacher is not None else None
    ways: Any = {"teacher": guide, "keep_checkpoints": keep_checkpoints, "quiet": json}
    trained = train(learner, opened.processor, task, examples, out / "checkpoints", recipe, **ways)
    if not is_main_process():
        return
    trained.save_pretrained(out)  # type: ignore[operator]
    if opened.processor is not None:
        opened.processor.save_pretrained(out)
    found = evaluate(trained, opened.batches(dev), task)
    result = {
        **task.settings(),
        "recipe": recipe.to_dict(),
        "train_examples": len(examples),
        "dev": to_plain(found.summary()),
    }
    result |= {"left_out": examples.left_out, **heads_left(trained)}
    result |= {name: to_plain(evaluate(trained, batches, task).summary()) for name, batches in tests.items()}
    write_text(out / "finetune.json", json_module.dumps(result, indent=1))
    if json:
        typer.echo(json_module.dumps(result, indent=1))
    else:
        low, high = found.interval().low, found.interval().high
        typer.echo(
            f"{task.metric.name} {found.score:.4f} ({low:.4f} to {high:.4f}) on {len(dev)} dev examples; saved to {out}"
        )


def new_model(name: str, task: Any, device: str, seed: int, *, from_scratch: bool = False) -> Any:
    """A model with a new head for the task, or with the one it has if it was made for such a task."""
    import torch
    import transformers

    torch.manual_seed(seed)  # a new head is random
    config = transformers.AutoConfig.from_pretrained(name, **task.model_options())
    if task.model_class == "AutoModel":  # the task takes any head: that of the checkpoint
        return model_class(config)(config).to(device) if from_scratch else load_model(name, device)
    cls = getattr(transformers, task.model_class)
    if from_scratch:
        return cls.from_config(config).to(device)
    try:
        return cls.from_pretrained(name, config=config).to(device)
    except RuntimeError as error:  # a head for another number of classes
        raise CheckpointError(
            f"'{name}' has a head that does not fit {task.name} ({error}). Start from a model without a head, or with "
            "the same classes."
        ) from error


def _teacher(name: str, learner: Any, processor: Any, device: str) -> Any:
    """The model to learn from, if its classes are the learner's, in the same order."""
    guide = match_padding_(load_model(name, device), processor)
    mine, theirs = (getattr(model.config, "id2label", None) for model in (learner, guide))
    if mine != theirs:
        raise CheckpointError(f"The teacher's classes are {theirs}, the learner's {mine}: answers do not compare.")
    return guide
