"""What is added to `transformers.Trainer`: an end, a rate, token batches, memory, gates, a teacher, validation."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn
from torch.utils.data import DataLoader

from headprune.errors import DataError
from headprune.files import note_step, noted_steps
from headprune.scoring.context import IGNORED, model_inputs
from headprune.tasks.recipe import Recipe
from headprune.tasks.task import Examples
from headprune.types import Batch, Outputs

if TYPE_CHECKING:
    from transformers import Trainer, TrainerCallback, TrainingArguments
    from transformers import TrainerControl as Control
    from transformers import TrainerState as State

VALIDATION = "validation.jsonl"  # beside the checkpoints: what `validate` found after each epoch


Validate = Callable[[nn.Module], Mapping[str, float]]


class Counted:
    """Collates, and counts the target tokens that go by."""

    def __init__(self, examples: Examples) -> None:
        self.examples, self.tokens = examples, 0

    def __call__(self, rows: list[Mapping[str, Any]]) -> dict[str, Any]:
        batch = model_inputs(self.examples.collate(rows))
        labels = batch.get("labels")
        if isinstance(labels, torch.Tensor) and labels.dim() == 2 and not labels.is_floating_point():
            self.tokens += int((labels != IGNORED).sum())
        return batch


def with_rate(trainer: type[Trainer]) -> type[Trainer]:
    """A Trainer whose logs tell target tokens a second, where examples have them."""

    class RatedTrainer(trainer):
        def log(self, logs: dict[str, float], *args: object, **kwargs: object) -> None:
            tokens, now = self.data_collator.tokens, time.perf_counter()
            before = getattr(self, "_counted", None)
            if "loss" in logs and tokens:
                if before is not None:
                    logs = {**logs, "tokens_per_second": round((tokens - before[0]) / (now - before[1]), 1)}
                self._counted = (tokens, now)
            super().log(logs, *args, **kwargs)

    return RatedTrainer


def with_an_end(trainer: type[Trainer]) -> type[Trainer]:
    """A Trainer that takes no step more when it is resumed from the checkpoint of its last step.

    transformers looks whether training is over only after a step. A run that was killed between its last checkpoint
    and its end would be another one than a run that nobody killed.
    """

    class EndingTrainer(trainer):
        is_over = False

        def get_batch_samples(self, *args: object, **kwargs: object) -> Any:
            if self.control.should_training_stop or self.state.global_step >= self.state.max_steps:
                self.is_over = self.control.should_training_stop = True
                return [], None
            return super().get_batch_samples(*args, **kwargs)

        def _save_checkpoint(self, *args: object, **kwargs: object) -> None:
            """What the run began with is not written again: a kill would leave half of it, and its state as it was."""
            if not self.is_over:
                super()._save_checkpoint(*args, **kwargs)

    return EndingTrainer


def with_token_batches(trainer: type[Trainer], examples: Examples, recipe: Recipe) -> type[Trainer]:
    class TokenTrainer(trainer):
        def get_train_dataloader(self) -> Any:
            sampler = recipe.token_batches(examples, processes=self.args.world_size)
            loader: Any = DataLoader(self.train_dataset, batch_sampler=sampler, collate_fn=self.data_collator)
            return self.accelerator.prepare(loader)

    return TokenTrainer


def with_memory(trainer: type[Trainer], examples: Examples, recipe: Recipe) -> Any:
    from headprune.tasks.text.streams import StreamExamples
    from headprune.tasks.text.trainer import with_streams

    if not isinstance(examples, StreamExamples):
        raise DataError("Training over a memory needs running text, not separate examples.")
    return with_streams(trainer, examples, recipe)


def validating(transformers: Any, trainer: Trainer, validate: Validate) -> TrainerCallback:
    class Validating(transformers.TrainerCallback):
        def on_train_begin(self, args: TrainingArguments, state: State, control: Control, **kwargs: object) -> None:
            before = [
                note for note in noted_steps(Path(args.output_dir) / VALIDATION) if note["step"] <= state.global_step
            ]
            self.begun = time.perf_counter() - (before[-1]["seconds"] if before else 0.0)

        def on_epoch_end(self, args: TrainingArguments, state: State, control: Control, **kwargs: object) -> None:
            if args.save_strategy == "epoch":
                self.look(args, state, control)

        def on_step_end(self, args: TrainingArguments, state: State, control: Control, **kwargs: object) -> None:
            # Before the checkpoint is written: a run killed in between would go on from there, and not look again.
            if args.save_strategy != "epoch" and control.should_save:
                self.look(args, state, control)

        def look(self, args: TrainingArguments, state: State, control: Control) -> None:
            if not trainer.is_world_process_zero():
                return
            found = dict(validate(trainer.model))
            seconds = time.perf_counter() - self.begun  # of the whole run, however often it was resumed
            entry = {"step": state.global_step, "epoch": state.epoch, "seconds": round(seconds, 1), **found}
            note_step(Path(args.output_dir) / VALIDATION, entry)
            due = control.should_log  # this log is not the one that other processes expect
            trainer.log({f"validation_{name}": value for name, value in found.items()})
            control.should_log = due

    return Validating()


def told_by_epoch(transformers: Any, step: Callable[[str], None], tell: Callable[[str], None]) -> TrainerCallback:
    """A bar that moves with every step, and a line an epoch."""

    class EpochLines(transformers.TrainerCallback):
        losses: ClassVar[list[float]] = []
        begun = time.perf_counter()

        def on_epoch_begin(self, args: TrainingArguments, state: State, control: Control, **kwargs: object) -> None:
            self.losses.clear()
            self.begun = time.perf_counter()

        def on_step_end(self, args: TrainingArguments, state: State, control: Control, **kwargs: object) -> None:
            loss = f", loss {self.losses[-1]:.3f}" if self.losses else ""
            step(f"epoch {math.ceil(state.epoch or 0)}{loss}")

        def on_log(self, args: TrainingArguments, state: State, control: Control, **kwargs: Any) -> None:
            loss = (kwargs.get("logs") or {}).get("loss")
            if isinstance(loss, int | float):
                self.losses.append(float(loss))

        def on_epoch_end(self, args: TrainingArguments, state: State, control: Control, **kwargs: object) -> None:
            mean = f"mean loss {sum(self.losses) / len(self.losses):.4f}, " if self.losses else ""
            tell(f"epoch {round(state.epoch or 0)}: {mean}{time.perf_counter() - self.begun:.0f} s")

    return EpochLines()


def with_gates(trainer: type[Trainer]) -> Any:
    from headprune.gates.trainer import GateMixin

    return type("GateTrainer", (GateMixin, trainer), {})


def with_teacher(trainer: type[Trainer], teacher: nn.Module, recipe: Recipe) -> type[Trainer]:
    """A Trainer whose loss also asks the model to answer as the teacher does."""

    class DistillingTrainer(trainer):
        loss_is_scaled_for_ga = False  # a mean over the batch, whatever the model's own loss is

        def compute_loss(self, model: nn.Module, inputs: Batch, return_outputs: bool = False, **kwargs: object) -> Any:
            outputs = model(**inputs)
            with torch.no_grad():
                wanted = teacher(**inputs)
            loss = _blend(outputs, wanted, inputs, recipe)
            return (loss, outputs) if return_outputs else loss

    teacher.eval().requires_grad_(False)
    return DistillingTrainer


def _blend(outputs: Outputs, wanted: Any, inputs: Batch, recipe: Recipe) -> torch.Tensor:
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
