"""Training through `transformers.Trainer`: fine-tuning, and whole runs from random weights."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

from headprune.checkpoint.out_folder import check_room
from headprune.checkpoint.training_state import newest_whole
from headprune.errors import DataError, MissingExtraError
from headprune.files import write_text
from headprune.gates.objective import Objective
from headprune.heads.stored import read_mask
from headprune.scoring.resumable import work_key
from headprune.structure.find import find_heads
from headprune.surgery.prune import prune_
from headprune.tasks.optimizers import optimizer_of
from headprune.tasks.processes import main_process_first, process_count
from headprune.tasks.recipe import Recipe
from headprune.tasks.task import Examples, Task
from headprune.tasks.trainers import (
    Counted,
    Validate,
    told_by_epoch,
    validating,
    with_an_end,
    with_gates,
    with_memory,
    with_rate,
    with_teacher,
    with_token_batches,
)
from headprune.types import Config, Processor

CHECKPOINTS = 20  # of a run over running text, which may be one epoch or less
_SCHEDULES = {
    "linear": "linear",
    "inverse-sqrt": "inverse_sqrt",
    "cosine": "cosine",
    "constant": "constant_with_warmup",
}


@dataclass(frozen=True, kw_only=True)
class Gating:
    """How gates are trained: see `GateMixin`."""

    objective: Objective
    gate_lr: float | None = None
    gate_lr_scale: float = 1.0


class _Rows(Dataset[Mapping[str, Any]]):
    """Examples as the Trainer wants them."""

    def __init__(self, examples: Examples) -> None:
        self.features = examples.features

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, row: int) -> Mapping[str, Any]:
        return self.features[row]


def finetune(
    model: nn.Module,
    processor: Processor,
    task: Task,
    examples: Examples,
    folder: Path,
    recipe: Recipe,
    *,
    teacher: nn.Module | None = None,
    gating: Gating | None = None,
    validate: Validate | None = None,
    resume: bool = True,
    keep_checkpoints: bool = False,
    quiet: bool = False,
    force: bool = False,
    watch: tuple[Callable[[str], None], Callable[[str], None]] | None = None,
) -> nn.Module:
    """Train `model` on the examples; checkpoints go to `folder`, and an interrupted run goes on from the last one.

    A pruned model keeps its heads removed, which is Budhraja et al.'s fixed mask: they mask first and train then.
    `keep_checkpoints` keeps one per epoch (for curves over training, Michel et al., Figure 5), otherwise only the last.
    With a `teacher`, the loss is shared with the divergence from the teacher's answers (temperature as usual).
    With `gating`, the model has gates, which are trained too (Voita et al., Shim et al.). What `validate` finds after
    each epoch is logged, and kept beside the checkpoints. With `force`, checkpoints of another run there are removed.
    `watch` is called with every step and with a line an epoch, in place of what the Trainer prints.
    """
    task.check_training(examples)
    if teacher is not None and recipe.label_smoothing:
        raise DataError("A teacher's answers are soft already: train with --label-smoothing 0, or without --teacher.")
    if task.carries and (teacher is not None or recipe.batch_tokens is not None):
        raise DataError(
            f"{task.name} trains on streams of text with a memory: without --teacher and --batch-tokens. For these "
            "take --task causal-lm, which has separate examples."
        )
    with _left_as_it_was(model):
        transformers = _transformers_with_trainer()
        trainer_class: Any = with_rate(transformers.Trainer)
        if recipe.batch_tokens is not None:
            trainer_class = with_token_batches(trainer_class, examples, recipe)
        if task.carries:
            trainer_class = with_memory(trainer_class, examples, recipe)
        if teacher is not None:
            trainer_class = with_teacher(trainer_class, teacher, recipe)
        trainer_class = with_an_end(trainer_class)
        own_loss = task.training_loss(recipe.label_smoothing) if teacher is None else None
        more: dict[str, Any] = {}
        if gating is not None:
            trainer_class, more = with_gates(trainer_class), {**vars(gating)}
        trainer = trainer_class(
            **more,
            model=model,
            args=_arguments(
                transformers,
                model,
                examples,
                folder,
                recipe,
                keep_all=keep_checkpoints,
                quiet=quiet or watch is not None,
                save_steps=math.ceil(recipe.steps(examples) / CHECKPOINTS) if task.carries else None,
            ),
            train_dataset=_Rows(examples),
            data_collator=Counted(examples),
            processing_class=processor,
            compute_loss_func=own_loss,
            optimizer_cls_and_kwargs=optimizer_of(recipe),
        )
        if own_loss is None:
            # Many models take `num_items_in_batch` and do not use it: their loss is the mean of a batch, and must be
            # averaged over accumulated batches and processes as one.
            trainer.model_accepts_loss_kwargs = False
        if watch is not None:
            trainer.add_callback(told_by_epoch(transformers, *watch))
        if quiet or watch is not None:
            trainer.remove_callback(transformers.PrinterCallback)  # it prints losses where a program reads JSON
        if validate is not None:
            trainer.add_callback(validating(transformers, trainer, validate))
        if trainer.is_world_process_zero():
            _claim(folder, _run_key(model, teacher, task, examples, recipe, gating), force=force)
            check_room(folder, 3 * sum(p.numel() * p.element_size() for p in model.parameters()), "a checkpoint")
        with main_process_first():
            last = newest_whole(folder) if resume else None
        with _attention_for(model, recipe):
            trainer.train(resume_from_checkpoint=None if last is None else str(last))
    return model.eval()


def cut_to_mask_(model: nn.Module, mask: Path) -> nn.Module:
    """Only the heads of a mask file, before training."""
    return prune_(model, read_mask(mask, find_heads(model)), about={"by": f"mask {mask.name}"})


@contextmanager
def _left_as_it_was(model: nn.Module) -> Iterator[None]:
    """What the Trainer leaves on a model is taken away: mixed precision around its forward, which would make every
    later score one in bf16, and `use_cache = False`, without which `generate` computes every step from the start."""
    config: Config = getattr(model, "config", None)
    forward = vars(model).get("forward")
    cache = getattr(config, "use_cache", None)
    try:
        yield
    finally:
        vars(model).pop("_original_forward", None)
        vars(model).pop("forward", None)
        if forward is not None:
            model.forward = forward
        if cache is not None:
            config.use_cache = cache


def _arguments(
    transformers: Any,
    model: nn.Module,
    examples: Examples,
    folder: Path,
    recipe: Recipe,
    *,
    keep_all: bool,
    quiet: bool,
    save_steps: int | None,
) -> Any:
    by_tokens = recipe.batch_tokens is not None
    return transformers.TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=recipe.epochs,
        max_steps=recipe.updates if recipe.updates is not None else -1,
        learning_rate=recipe.learning_rate,
        per_device_train_batch_size=recipe.batch_size,
        gradient_accumulation_steps=recipe.accumulate,
        warmup_steps=recipe.warmup,
        weight_decay=recipe.weight_decay,
        adam_beta1=recipe.betas[0],
        adam_beta2=recipe.betas[1],
        adam_epsilon=recipe.epsilon,
        lr_scheduler_type="cosine_with_min_lr" if recipe.floor else _SCHEDULES[recipe.schedule],
        lr_scheduler_kwargs={"min_lr_rate": recipe.floor} if recipe.floor else None,
        max_grad_norm=recipe.clip,
        bf16=recipe.bf16,
        save_strategy="epoch" if save_steps is None else "steps",
        save_steps=save_steps or 500,
        save_total_limit=None if keep_all else 1,
        logging_steps=max(1, min(50, recipe.steps(examples) // 20)),
        report_to=[],
        seed=recipe.seed,
        **_by_length("input_ids" in examples.features[0]),
        disable_tqdm=quiet,
        use_cpu=next(model.parameters()).device.type == "cpu",
        dataloader_pin_memory=False,
        remove_unused_columns=False,  # the collator does it
        accelerator_config={"even_batches": False} if by_tokens else None,  # token batches are even by themselves
    )


def _by_length(wanted: bool) -> dict[str, Any]:
    """Batches of like lengths, as this version of transformers has it: 5.1 has another name for it than later ones."""
    known = _transformers_with_trainer().TrainingArguments.__dataclass_fields__
    if "train_sampling_strategy" in known:
        return {"train_sampling_strategy": "group_by_length" if wanted else "random"}
    return {"group_by_length": wanted}


@contextmanager
def _attention_for(model: nn.Module, recipe: Recipe) -> Iterator[None]:
    """In bf16 on a CPU, the backward pass of fused attention takes many times as long as that of the plain one."""
    before = getattr(getattr(model, "config", None), "_attn_implementation", None)
    if not recipe.bf16 or next(model.parameters()).device.type != "cpu" or before in (None, "eager"):
        yield
        return
    model.set_attn_implementation("eager")  # type: ignore[operator]
    try:
        yield
    finally:
        model.set_attn_implementation(before)  # type: ignore[operator]


def _run_key(
    model: nn.Module, teacher: nn.Module | None, task: Task, examples: Examples, recipe: Recipe, gating: Gating | None
) -> str:
    """The same for the same start, data and settings."""
    data = hashlib.sha256()
    for row in examples.features:
        for name, value in sorted(row.items()):
            data.update(name.encode() + _content(value))
    settings = {name: value for name, value in recipe.to_dict().items() if name != "max_length"}  # the data shows it
    options: dict[str, Any] = {"task": task.name, "recipe": settings, "data": data.hexdigest()}
    if gating is not None:
        options |= {"objective": gating.objective.to_dict(), "gate_lr": gating.gate_lr, "scale": gating.gate_lr_scale}
    if task.carries:
        options["processes"] = process_count()  # streams and memories are dealt out to them
    if teacher is not None:
        options["teacher"] = work_key(teacher, [], {})
    return work_key(model, [], options)


def _content(value: object) -> bytes:
    """What a feature holds, the same in every process: an image or array by its numbers, not by its address."""
    if isinstance(value, torch.Tensor):
        value = value.numpy()
    return value.tobytes() if hasattr(value, "tobytes") else repr(value).encode()


def _claim(folder: Path, key: str, *, force: bool) -> None:
    """Checkpoints of another run must not be taken for this one's."""
    note = folder / "run.json"
    if note.is_file():
        if note.read_bytes() == json.dumps({"key": key}).encode():
            return
        if not force:
            raise DataError(
                f"'{folder}' holds checkpoints of a run with another model, other data or other settings. Choose "
                "another --out, or say --force to remove them."
            )
        for path in (*folder.glob("checkpoint-*"), *folder.glob("damaged-*")):
            shutil.rmtree(path)
        for path in folder.glob("*.jsonl"):  # what was seen meanwhile
            path.unlink()
    write_text(note, json.dumps({"key": key}))


def _transformers_with_trainer() -> Any:
    try:
        import accelerate  # noqa: F401
        import transformers
        import transformers.trainer_utils
    except ImportError as error:
        raise MissingExtraError("Fine-tuning needs accelerate: pip install 'headprune[tasks]'.") from error
    return transformers
