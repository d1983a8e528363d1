"""A Trainer that reads text in streams and carries the memory from step to step."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn
from torch.utils.data import DataLoader

from headprune.errors import CheckpointError, DataError
from headprune.lab.models.memory import SegmentMemory
from headprune.tasks.recipe import Recipe
from headprune.tasks.text.streams import StreamBatches, StreamExamples, StreamRows
from headprune.types import Batch

if TYPE_CHECKING:
    from transformers import Trainer


def with_streams(trainer: type[Trainer], examples: StreamExamples, recipe: Recipe) -> type[Trainer]:
    """Batches that are accumulated, or dealt to several processes, have streams and memories of their own."""

    class StreamTrainer(trainer):
        def __init__(self, *args: object, **kwargs: object) -> None:
            super().__init__(*args, **kwargs)
            if self.args.n_gpu > 1:
                raise DataError(
                    f"Found {self.args.n_gpu} GPUs for one process, which cannot share a memory. Start a process for "
                    "each with `accelerate launch`, or show it one with CUDA_VISIBLE_DEVICES."
                )
            groups = recipe.accumulate * self.args.world_size
            self._batches = StreamBatches(examples.segments, recipe.batch_size, groups=groups, seed=recipe.seed)
            # After a resume on several processes nothing else tells the sampler where it is.
            self._batches.epoch_now = lambda: self.state.global_step // self._batches.steps
            self._memories: list[SegmentMemory | None] = [None] * recipe.accumulate
            self._read: int | None = None  # batches that this process has read since the run began

        def get_train_dataloader(self) -> Any:
            rows = StreamRows(examples.segments.tokens, self._batches)
            loader: Any = DataLoader(rows, batch_sampler=self._batches, collate_fn=self.data_collator)
            return self.accelerator.prepare(loader)

        def compute_loss(self, model: nn.Module, inputs: Batch, return_outputs: bool = False, **kwargs: object) -> Any:
            if not model.training:
                return super().compute_loss(model, inputs, return_outputs=return_outputs, **kwargs)
            if self._read is None:
                self._read = self.state.global_step * recipe.accumulate
            in_epoch = self._read % (self._batches.steps * recipe.accumulate)
            group = self._read % recipe.accumulate
            known = self._memories[group] if in_epoch >= recipe.accumulate else None  # an epoch begins elsewhere
            window = inputs["input_ids"]
            asked = {
                "input_ids": window[:, :-1],
                "shift_labels": window[:, 1:],
                "past_key_values": known,
                "use_cache": True,
            }
            loss, outputs = super().compute_loss(model, asked, return_outputs=True, **kwargs)
            self._memories[group] = outputs.past_key_values
            self._read += 1
            return (loss, outputs) if return_outputs else loss

        def _save_checkpoint(self, *args: object, **kwargs: object) -> None:
            """The memory first: a checkpoint counts as whole when the Trainer has written its state, which is last."""
            folder = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
            folder.mkdir(parents=True, exist_ok=True)
            save_file(_packed(self._memories), folder / _name(self.args.process_index))
            self.accelerator.wait_for_everyone()
            super()._save_checkpoint(*args, **kwargs)

        def _load_from_checkpoint(self, resume_from_checkpoint: str, *args: object, **kwargs: object) -> Any:
            path = Path(resume_from_checkpoint) / _name(self.args.process_index)
            device = str(next(self.model.parameters()).device)
            self._memories = _unpacked(path, recipe.accumulate, device)
            return super()._load_from_checkpoint(resume_from_checkpoint, *args, **kwargs)

    return StreamTrainer


def _name(process: int) -> str:
    return f"memory-{process}.safetensors"


def _packed(memories: list[SegmentMemory | None]) -> dict[str, torch.Tensor]:
    """Group and layer make the name."""
    return {
        f"{group}.{layer}": tensor.contiguous().cpu()
        for group, memory in enumerate(memories)
        for layer, tensor in enumerate(memory.layers if memory is not None else ())
    }


def _unpacked(path: Path, groups: int, device: str) -> list[SegmentMemory | None]:
    try:
        stored = load_file(path, device=device)
        layers = [
            [stored[name] for name in sorted((n for n in stored if n.split(".")[0] == str(group)), key=_layer)]
            for group in range(groups)
        ]
    except (OSError, ValueError, IndexError, SafetensorError) as error:
        raise CheckpointError(
            f"The memory of the run cannot be read from '{path}' ({error}). Remove this checkpoint: the run then goes "
            "on from an earlier one if it was kept, or from the start."
        ) from error
    return [SegmentMemory(group) if group else None for group in layers]


def _layer(name: str) -> int:
    return int(name.split(".")[1])
