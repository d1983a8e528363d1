"""Gates in a `transformers.Trainer`: a mixin that adds the penalty, and a callback that keeps the schedule."""

from __future__ import annotations

import fnmatch
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState
from transformers.trainer_utils import TrainOutput, get_last_checkpoint

from headprune.checkpoint.config_entry import GATES_ENTRY, stored_entry
from headprune.errors import GateError, TrainingError
from headprune.files import note_step, noted_steps
from headprune.gates.attach import gates_of
from headprune.gates.model_gates import Gates
from headprune.gates.objective import Objective
from headprune.types import Batch, Outputs

# What a mixin is mixed with; at run time that is whatever Trainer comes after it.
if TYPE_CHECKING:
    from transformers import Trainer as _Base
else:
    _Base = object

TRAJECTORY = "trajectory.jsonl"
PRESETS = {"all": ("*",), "gates": (), "encoder": ("*encoder*", "*embed*", "*shared*")}


class GateCallback(TrainerCallback):
    """For a Trainer of your own: tells the gates the step, moves the multiplier, freezes in time."""

    def __init__(self, gates: Gates, objective: Objective) -> None:
        self.gates, self.objective = gates, objective

    def on_train_begin(self, args: object, state: TrainerState, control: TrainerControl, **kwargs: object) -> None:
        freeze = self.objective.freeze_after
        if freeze is not None and state.global_step >= freeze and not self.gates.frozen:
            self.objective.freeze(self.gates)  # a run that was resumed after that step
        if state.global_step:
            self._stop_if_done(control, kwargs.get("model"))

    def on_step_begin(self, args: object, state: TrainerState, control: TrainerControl, **kwargs: object) -> None:
        self.gates.at(state.global_step)

    def on_step_end(self, args: object, state: TrainerState, control: TrainerControl, **kwargs: object) -> None:
        self.objective.after_step(self.gates, state.global_step - 1)  # the Trainer has counted this step already
        self._stop_if_done(control, kwargs.get("model"))

    def _stop_if_done(self, control: TrainerControl, model: object) -> None:
        if self.gates.frozen and isinstance(model, nn.Module) and not any(p.requires_grad for p in model.parameters()):
            control.should_training_stop = True  # only gates were trained, and they are frozen


class GateMixin(_Base):
    """Makes a Trainer train gates too: `class Mine(GateMixin, Trainer)`, then `Mine(…, objective=Objective(…))`.

    The model must have gates. `gate_lr` is their learning rate; `gate_lr_scale` gives it as a multiple of the model's
    (10 in Shim et al., 1 in Voita et al.). Logs get the task's loss, and the expected and actual number of open heads,
    by site and by component; a file beside the checkpoints also gets P(open) of every head (`read_trajectory`).
    """

    def __init__(
        self,
        *args: object,
        objective: Objective,
        gate_lr: float | None = None,
        gate_lr_scale: float = 1.0,
        **kwargs: object,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.gates, self.objective = gates_of(self.model), objective
        objective.check(self.gates)
        self.gate_lr = gate_lr if gate_lr is not None else gate_lr_scale * self.args.learning_rate
        if not 0 <= self.gate_lr < math.inf:
            raise GateError(f"The learning rate of the gates is {self.gate_lr}; expected 0 or more.")
        self.add_callback(GateCallback(self.gates, objective))
        self._task_losses: list[Tensor] = []

    def compute_loss(
        self, model: nn.Module, inputs: Batch, return_outputs: bool = False, **kwargs: object
    ) -> Tensor | tuple[Tensor, Outputs]:
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **kwargs)
        if model.training:
            if not bool(torch.isfinite(loss.detach())):
                raise TrainingError(
                    f"The loss is {float(loss.detach())} at step {self.state.global_step}: training stopped before "
                    f"the weights were touched. Good ones are in the last checkpoint under {self.args.output_dir}; "
                    "start again from there with a smaller learning rate."
                )
            extra = self.objective.loss(self.gates, self.state.global_step)
            batches = self.current_gradient_accumulation_steps if self._adds_up(kwargs.get("num_items_in_batch")) else 1
            self._task_losses.append(loss.detach() * batches)
            loss = loss + extra / batches
            if not loss.requires_grad:  # only gates were trained, and they are frozen: the run is about to stop
                loss = loss.detach().requires_grad_()
        return (loss, outputs) if return_outputs else loss

    def _adds_up(self, items: object) -> bool:
        """Whether the Trainer sums the losses of accumulated batches, instead of averaging them."""
        scaled = getattr(self, "loss_is_scaled_for_ga", None)  # older Trainers do not have it
        if scaled is not None:
            return bool(scaled)
        return (self.model_accepts_loss_kwargs and items is not None) or self.compute_loss_func is not None

    def create_optimizer(self, *args: object, **kwargs: object) -> torch.optim.Optimizer:
        """Gates in a group of their own: their learning rate, no weight decay."""
        optimizer: torch.optim.Optimizer = super().create_optimizer(*args, **kwargs)
        if any(group.get("gates") for group in optimizer.param_groups):
            return optimizer
        own = {id(parameter) for parameter in self.gates.parameters()}
        for group in optimizer.param_groups:
            group["params"] = [parameter for parameter in group["params"] if id(parameter) not in own]
        trained = [parameter for parameter in self.gates.parameters() if parameter.requires_grad]
        if trained:
            optimizer.add_param_group({"params": trained, "lr": self.gate_lr, "weight_decay": 0.0, "gates": True})
        return optimizer

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: object, **kwargs: object) -> TrainOutput:
        """As ever; a run is not resumed with other gates, whose weights would be left out without a word."""
        folder = resume_from_checkpoint
        if folder is True:
            folder = get_last_checkpoint(self.args.output_dir)
        if isinstance(folder, str | Path):
            self._check_gates_of(Path(folder))
        return super().train(resume_from_checkpoint, *args, **kwargs)

    def _check_gates_of(self, folder: Path) -> None:
        try:
            stored = stored_entry(folder, GATES_ENTRY)
        except (OSError, ValueError, AttributeError) as error:
            raise GateError(f"The checkpoint '{folder}' has no readable config: {error}.") from error
        mine = json.loads(json.dumps(getattr(self.gates.model.config, GATES_ENTRY)))
        if stored is None or any(stored.get(name) != mine[name] for name in ("kind", "options", "sites")):
            found = "no gates" if stored is None else f"other gates ({stored.get('kind')})"
            raise GateError(
                f"The checkpoint '{folder}' has {found} than this model has. Resume with the gates it was trained "
                "with, or start in another folder."
            )

    def log(self, logs: dict[str, float], *args: object, **kwargs: object) -> None:
        if self._task_losses and "loss" in logs:
            found = {"task_loss": float(torch.stack(self._task_losses).mean()), **gate_logs(self.gates)}
            self._task_losses = []
            self._note(found)
            logs = {**logs, **found}
        super().log(logs, *args, **kwargs)

    def _note(self, found: dict[str, float]) -> None:
        if self.is_world_process_zero():
            entry = {"step": self.state.global_step, **found, "prob_open": self.gates.probabilities()}
            note_step(Path(self.args.output_dir) / TRAJECTORY, entry)


def read_trajectory(folder: Path) -> list[dict[str, Any]]:
    """What a run wrote about its gates, by step."""
    return noted_steps(folder / TRAJECTORY)


class GateTrainer(GateMixin, Trainer):
    """transformers' Trainer with gates."""


def gate_logs(gates: Gates) -> dict[str, float]:
    """What to write down about gates while they train."""
    opened = gates.open_heads()
    return {
        "l0": gates.expected_heads(),
        "open_heads": float(sum(opened.values())),
        "decided": gates.share_decided(),
        "multiplier": float(gates.multiplier),
        **{f"open/{site}": float(count) for site, count in opened.items()},
        **{f"open/{name}": float(count) for name, count in gates.open_by_component().items()},
    }


def choose_trainable_(model: nn.Module, which: str | Sequence[str] = "all") -> int:
    """Let only some weights train, and say how many: "all", "gates" (only these), "encoder" (with its embeddings, the
    decoder frozen: Voita et al. 6.2), or patterns of parameter names. Gates always train, unless they are frozen.

    A table of vectors that encoder and decoder share is the decoder's too, and stays frozen with "encoder".

    Example:
        >>> gates = hp.attach_gates(model)
        >>> hp.choose_trainable_(model, "gates")  # a number for each of eight heads
        8
    """
    patterns = PRESETS[which] if isinstance(which, str) and which in PRESETS else which
    patterns = (patterns,) if isinstance(patterns, str) else tuple(patterns)
    gates = gates_of(model)
    own = set() if gates.frozen else {id(parameter) for parameter in gates.parameters()}
    count, matched = 0, not patterns
    frozen = _of_decoder(model) if which == "encoder" else set()
    for name, parameter in model.named_parameters():
        wanted = any(fnmatch.fnmatch(name, pattern) for pattern in patterns) and id(parameter) not in frozen
        matched = matched or wanted
        if parameter.is_floating_point():
            parameter.requires_grad_(wanted or id(parameter) in own)
            count += parameter.numel() if parameter.requires_grad else 0
    if not matched:
        raise GateError(f"No weight is called {' or '.join(patterns)}. Known presets: {', '.join(sorted(PRESETS))}.")
    return count


def _of_decoder(model: nn.Module) -> set[int]:
    """Weights that the decoder or the output layer uses, under whatever names."""
    output = getattr(model, "get_output_embeddings", lambda: None)()
    used = {id(parameter) for parameter in output.parameters()} if isinstance(output, nn.Module) else set()
    return used | {id(p) for name, p in model.named_parameters(remove_duplicate=False) if "decoder" in name}
