"""Fine-tuning through `transformers.Trainer`, with Michel et al.'s settings as defaults."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

from headprune.errors import DataError, MissingExtraError
from headprune.gates.objective import Objective
from headprune.heads.files import write_text
from headprune.resuming import work_key
from headprune.scoring.job import model_inputs
from headprune.scoring.losses import IGNORED
from headprune.tasks.task import Examples, Task


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How to train. The defaults are Michel et al.'s: batch 32, learning rate 2e-5, 3 epochs, 10 % warm-up."""

    epochs: float = 3.0
    learning_rate: float = 2e-5
    batch_size: int = 32
    max_length: int = 128
    warmup: float = 0.1
    weight_decay: float = 0.01
    seed: int = 42
    teacher_weight: float = 0.5  # share of the loss that comes from the teacher, if there is one
    teacher_temperature: float = 2.0

    def steps(self, examples: int) -> int:
        """How many steps the Trainer will take on one process."""
        return max(1, math.ceil(math.ceil(examples / self.batch_size) * self.epochs))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


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
    processor: Any,
    task: Task,
    examples: Examples,
    folder: Path,
    recipe: Recipe,
    *,
    teacher: nn.Module | None = None,
    gating: Gating | None = None,
    resume: bool = True,
    keep_checkpoints: bool = False,
    quiet: bool = False,
) -> nn.Module:
    """Train `model` on the examples; checkpoints go to `folder`, and an interrupted run goes on from the last one.

    A pruned model keeps its heads removed, which is Budhraja et al.'s fixed mask: they mask first and train then.
    `keep_checkpoints` keeps one per epoch (for curves over training, Michel et al., Figure 5), otherwise only the last.
    With a `teacher`, the loss is shared with the divergence from the teacher's answers (temperature as usual).
    With `gating`, the model has gates, which are trained too (Voita et al., Shim et al.).
    """
    task.check_training(examples)
    transformers = _transformers_with_trainer()
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=recipe.epochs,
        learning_rate=recipe.learning_rate,
        per_device_train_batch_size=recipe.batch_size,
        warmup_steps=recipe.warmup,
        weight_decay=recipe.weight_decay,
        lr_scheduler_type="linear",
        save_strategy="epoch",
        save_total_limit=None if keep_checkpoints else 1,
        logging_steps=max(1, min(50, recipe.steps(len(examples)) // 20)),
        report_to=[],
        seed=recipe.seed,
        train_sampling_strategy="group_by_length" if "input_ids" in examples.features[0] else "random",
        disable_tqdm=quiet,
        use_cpu=next(model.parameters()).device.type == "cpu",
        dataloader_pin_memory=False,
        remove_unused_columns=False,  # the collator does it
    )
    trainer_class: Any = transformers.Trainer
    if teacher is not None:
        trainer_class = _with_teacher(trainer_class, teacher, recipe)
    more: dict[str, Any] = {}
    if gating is not None:
        trainer_class, more = _with_gates(trainer_class), {**vars(gating)}
    trainer = trainer_class(
        **more,
        model=model,
        args=arguments,
        train_dataset=_Rows(examples),
        data_collator=lambda rows: model_inputs(examples.collate(rows)),
        processing_class=processor,
    )
    if quiet:
        trainer.remove_callback(transformers.PrinterCallback)  # it prints losses where a program reads JSON
    _claim(folder, _run_key(model, teacher, task, examples, recipe, gating))
    checkpoint = transformers.trainer_utils.get_last_checkpoint(str(folder)) if resume and folder.is_dir() else None
    trainer.train(resume_from_checkpoint=checkpoint)
    return model.eval()


def _run_key(
    model: nn.Module, teacher: nn.Module | None, task: Task, examples: Examples, recipe: Recipe, gating: Gating | None
) -> str:
    """The same for the same start, data and settings."""
    data = hashlib.sha256()
    for row in examples.features:
        for name, value in sorted(row.items()):
            data.update(name.encode() + _content(value))
    options: dict[str, Any] = {"task": task.name, "recipe": recipe.to_dict(), "data": data.hexdigest()}
    if gating is not None:
        options |= {"objective": gating.objective.to_dict(), "gate_lr": gating.gate_lr, "scale": gating.gate_lr_scale}
    if teacher is not None:
        options["teacher"] = work_key(teacher, [], {})
    return work_key(model, [], options)


def _content(value: Any) -> bytes:
    """What a feature holds, the same in every process: an image or array by its numbers, not by its address."""
    if isinstance(value, torch.Tensor):
        value = value.numpy()
    return value.tobytes() if hasattr(value, "tobytes") else repr(value).encode()


def _claim(folder: Path, key: str) -> None:
    """Checkpoints of another run must not be taken for this one's."""
    note = folder / "run.json"
    if note.is_file():
        if note.read_text(encoding="utf-8") == json.dumps({"key": key}):
            return
        raise DataError(
            f"'{folder}' holds checkpoints of a run with another model, other data or other settings. Choose another "
            "--out, or remove that folder."
        )
    write_text(note, json.dumps({"key": key}))


def _transformers_with_trainer() -> Any:
    try:
        import accelerate  # noqa: F401
        import transformers
        import transformers.trainer_utils
    except ImportError as error:
        raise MissingExtraError("Fine-tuning needs accelerate: pip install 'headprune[tasks]'.") from error
    return transformers


def _with_gates(trainer: Any) -> Any:
    from headprune.gates.training import GateMixin

    return type("GateTrainer", (GateMixin, trainer), {})


def _with_teacher(trainer: Any, teacher: nn.Module, recipe: Recipe) -> Any:
    """A Trainer whose loss also asks the model to answer as the teacher does."""

    class DistillingTrainer(trainer):  # type: ignore[misc]
        def compute_loss(
            self, model: nn.Module, inputs: Mapping[str, Any], return_outputs: bool = False, **kwargs: Any
        ) -> Any:
            outputs = model(**inputs)
            with torch.no_grad():
                wanted = teacher(**inputs)
            loss = _blend(outputs, wanted, inputs, recipe)
            return (loss, outputs) if return_outputs else loss

    teacher.eval().requires_grad_(False)
    return DistillingTrainer


def _blend(outputs: Any, wanted: Any, inputs: Mapping[str, Any], recipe: Recipe) -> torch.Tensor:
    """The model's own loss, and how far its answers are from the teacher's."""
    gaps = [
        _divergence(outputs[name], wanted[name], inputs.get("labels"), recipe.teacher_temperature)
        for name in ("logits", "start_logits", "end_logits")
        if name in outputs
    ]
    own: torch.Tensor = outputs["loss"]
    return (1 - recipe.teacher_weight) * own + recipe.teacher_weight * torch.stack(gaps).mean()


def _divergence(
    mine: torch.Tensor, theirs: torch.Tensor, labels: torch.Tensor | None, temperature: float
) -> torch.Tensor:
    """At the positions that have a label; squared error for a number, Kullback-Leibler for classes."""
    if mine.shape[-1] == 1:
        return nn.functional.mse_loss(mine, theirs)
    if labels is not None and labels.shape == mine.shape[:-1]:
        asked = labels != IGNORED
        mine, theirs = mine[asked], theirs[asked]  # (positions, classes)
    ours, wanted = ((logits / temperature).log_softmax(-1) for logits in (mine, theirs))
    return nn.functional.kl_div(ours, wanted, reduction="batchmean", log_target=True) * temperature**2
