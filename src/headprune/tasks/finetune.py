"""Fine-tuning a classifier through `transformers.Trainer`, with Michel et al.'s settings as defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

from headprune.errors import DataError, MissingExtraError
from headprune.tasks.classification import Examples, TextTask


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

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class _Tokens(Dataset[dict[str, Any]]):
    """Examples as the Trainer's collator wants them."""

    def __init__(self, examples: Examples, tokenizer: Any, recipe: Recipe, is_regression: bool) -> None:
        second = None if examples.second is None else list(examples.second)
        self.encoded = tokenizer(list(examples.first), second, truncation=True, max_length=recipe.max_length)
        self.labels = [label if is_regression else int(label) for label in examples.labels]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> dict[str, Any]:
        return {**{name: values[row] for name, values in self.encoded.items()}, "label": self.labels[row]}


def finetune(
    model: nn.Module,
    tokenizer: Any,
    task: TextTask,
    examples: Examples,
    folder: Path,
    recipe: Recipe,
    *,
    teacher: nn.Module | None = None,
    resume: bool = True,
    keep_checkpoints: bool = False,
    quiet: bool = False,
) -> nn.Module:
    """Train `model` on the examples; checkpoints go to `folder`, and an interrupted run goes on from the last one.

    A pruned model keeps its heads removed, which is Budhraja et al.'s fixed mask: they mask first and train then.
    `keep_checkpoints` keeps one per epoch (for curves over training, Michel et al., Figure 5), otherwise only the last.
    With a `teacher`, the loss is shared with the divergence from the teacher's answers (temperature as usual).
    """
    if len(examples) < 2:
        raise DataError(f"Found {len(examples)} training example: fine-tuning needs at least 2.")
    if not task.is_regression and len({int(label) for label in examples.labels}) < 2:
        raise DataError("All training examples have one class: there is nothing to tell apart. Check the label column.")
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
        logging_steps=50,
        report_to=[],
        seed=recipe.seed,
        disable_tqdm=quiet,
        use_cpu=next(model.parameters()).device.type == "cpu",
        dataloader_pin_memory=False,
        remove_unused_columns=True,
    )
    trainer_class = (
        _with_teacher(transformers.Trainer, teacher, recipe) if teacher is not None else transformers.Trainer
    )
    trainer = trainer_class(
        model=model,
        args=arguments,
        train_dataset=_Tokens(examples, tokenizer, recipe, task.is_regression),
        data_collator=transformers.DataCollatorWithPadding(tokenizer),
        processing_class=tokenizer,
    )
    if quiet:
        trainer.remove_callback(transformers.PrinterCallback)  # it prints losses where a program reads JSON
    checkpoint = transformers.trainer_utils.get_last_checkpoint(str(folder)) if resume and folder.is_dir() else None
    trainer.train(resume_from_checkpoint=checkpoint)
    return model.eval()


def _transformers_with_trainer() -> Any:
    try:
        import accelerate  # noqa: F401
        import transformers
        import transformers.trainer_utils
    except ImportError as error:
        raise MissingExtraError("Fine-tuning needs accelerate: pip install 'headprune[tasks]'.") from error
    return transformers


def _with_teacher(trainer: Any, teacher: nn.Module, recipe: Recipe) -> Any:
    """A Trainer whose loss also asks the model to answer as the teacher does."""

    class DistillingTrainer(trainer):  # type: ignore[misc]
        def compute_loss(
            self, model: nn.Module, inputs: Mapping[str, Any], return_outputs: bool = False, **kwargs: Any
        ) -> Any:
            outputs = model(**inputs)
            with torch.no_grad():
                wanted = teacher(**{name: value for name, value in inputs.items() if name != "labels"}).logits
            loss = _blend(outputs.loss, outputs.logits, wanted, recipe)
            return (loss, outputs) if return_outputs else loss

    teacher.eval().requires_grad_(False)
    return DistillingTrainer


def _blend(loss: torch.Tensor, logits: torch.Tensor, wanted: torch.Tensor, recipe: Recipe) -> torch.Tensor:
    t = recipe.teacher_temperature
    if logits.shape[-1] == 1:
        divergence = nn.functional.mse_loss(logits, wanted)
    else:
        mine, theirs = (logits / t).log_softmax(-1), (wanted / t).log_softmax(-1)
        divergence = nn.functional.kl_div(mine, theirs, reduction="batchmean", log_target=True) * t * t
    return (1 - recipe.teacher_weight) * loss + recipe.teacher_weight * divergence
