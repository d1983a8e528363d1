"""What every scorer is given, and where it puts its numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from headprune.errors import DataError
from headprune.heads import HeadMap, HeadScores
from headprune.hooks import joined_heads
from headprune.scoring.losses import ExampleLoss
from headprune.structure.modes import eval_mode
from headprune.types import Batch

ROW = "row"  # which example is in which row of a batch


@dataclass(frozen=True)
class ScoringContext:
    """A model in evaluation mode, its heads, batches on its device, and the loss of an example."""

    model: nn.Module
    heads: HeadMap
    batches: Iterable[Batch]
    loss: ExampleLoss
    seed: int = 0
    run: Callable[[nn.Module, Batch], Any] = lambda model, inputs: model(**inputs)
    searches: bool = False  # whether `run` takes many forward passes (beam search)

    def whole(self, batch: Batch) -> Any:
        """What the task counts as the model's answer: a forward pass unless `run` says otherwise."""
        return self.run(self.model, model_inputs(batch))

    def answer(self, batch: Batch) -> Any:
        """The model's answer where no loss is wanted. Encoder-decoders make their decoder inputs from the labels."""
        inputs = model_inputs(batch)
        if self.has_encoder:
            return self.model(**inputs)
        return self.model(**{name: value for name, value in inputs.items() if name != "labels"})

    @property
    def has_encoder(self) -> bool:
        """Whether the model reads one text and writes another."""
        return bool(getattr(getattr(self.model, "config", None), "is_encoder_decoder", False))

    def example_losses(self, batch: Batch) -> Tensor:
        return self.loss(self.model(**model_inputs(batch)), batch)  # (batch,)


@dataclass
class HeadSums:
    """Sums, sums of squares and counts per head, in float64."""

    heads: HeadMap
    sums: dict[str, Tensor] = field(default_factory=dict)
    squares: dict[str, Tensor] = field(default_factory=dict)
    counts: dict[str, float] = field(default_factory=dict)

    def add(self, site: str, samples: Tensor) -> None:
        """One row per sample, one column per current head of the site."""
        rows = samples.detach().double().cpu()  # (samples, heads)
        self.sums[site] = self.sums.get(site, 0) + rows.sum(0)
        self.squares[site] = self.squares.get(site, 0) + rows.square().sum(0)
        self.counts[site] = self.counts.get(site, 0.0) + len(rows)

    def scores(self, method: str, **options: Any) -> HeadScores:
        if not self.counts:
            raise DataError("The data has no batch: there is nothing to score on. Check the file and its filters.")
        missed = [site.id for site in self.heads if site.num_heads and site.id not in self.counts]
        if missed:
            raise DataError(f"{missed[0]} is not reached by any batch of the data: pass data that it sees.")
        return HeadScores(
            method=method,
            sums={site.id: self._row(site.id, self.sums) for site in self.heads},
            squares={site.id: self._row(site.id, self.squares) for site in self.heads},
            counts={site.id: self.counts.get(site.id, 1.0) for site in self.heads},
            options=options,
        )

    def _row(self, site_id: str, table: Mapping[str, Tensor]) -> tuple[float | None, ...]:
        site = self.heads[site_id]
        row: list[float | None] = [None] * site.original_num_heads
        for place, index in enumerate(site.kept):
            row[index] = float(table[site_id][place])
        return tuple(row)


@contextmanager
def evaluation(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients for weights (masks may want them); afterwards as before."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in trained:
        parameter.requires_grad_(False)
    try:
        with eval_mode(model), joined_heads(model):
            yield
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)


def batches_of(
    data: Any, device: torch.device, *, collator: Any = None, batch_size: int = 16
) -> Iterator[dict[str, Any]]:
    """Batches on the device, from a DataLoader, a list of batches, or a dataset of examples with a collator."""
    if isinstance(data, Mapping):
        raise DataError("Found one batch; expected several. Put it into a list: [batch].")
    if _is_dataset(data):
        from torch.utils.data import DataLoader

        data = DataLoader(data, batch_size=batch_size, shuffle=False, collate_fn=collator)
    for batch in data:
        if not isinstance(batch, Mapping):
            raise DataError(
                f"A batch is a {type(batch).__name__}; expected a table of model inputs with labels. "
                "Pass a DataLoader, a list of batches, or a dataset and its collator."
            )
        _refuse_single_examples(batch)
        yield on_device(batch, device)


def _refuse_single_examples(batch: Batch) -> None:
    tokens = batch.get("input_ids")
    has_tensors = any(isinstance(value, Tensor) for value in batch.values())
    if not has_tensors or (tokens is not None and (not isinstance(tokens, Tensor) or tokens.dim() < 2)):
        raise DataError(
            f"A batch has no tensors with a row for each example ({', '.join(map(str, batch))}): it looks like one "
            "example, or like lists. Pass batches, or a dataset with a collator (transformers.DataCollatorWithPadding)."
        )


def on_device(batch: Batch, device: torch.device) -> dict[str, Any]:
    moved = {key: value.to(device) if isinstance(value, Tensor) else value for key, value in batch.items()}
    with torch.inference_mode(False):  # tensors that were made in inference mode know no gradients
        return {key: value.clone() if _is_inference(value) else value for key, value in moved.items()}


def _is_inference(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_inference()


def model_inputs(batch: Batch) -> dict[str, Any]:
    """Without what tasks keep for themselves: the examples' rows, and names that begin with _."""
    return {key: value for key, value in batch.items() if key != ROW and not key.startswith("_")}


def _is_dataset(data: Any) -> bool:
    if isinstance(data, Sequence) or not (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        return False
    return len(data) == 0 or isinstance(data[0], Mapping)


def batch_rows(batch: Batch) -> int:
    """How many examples a batch has."""
    for name in ("labels", "input_ids", "pixel_values", "input_values", "input_features", "start_positions"):
        if isinstance(batch.get(name), Tensor):
            return int(batch[name].shape[0])
    return int(next(value for value in batch.values() if isinstance(value, Tensor)).shape[0])


def single_examples(batch: Batch) -> Iterator[dict[str, Any]]:
    rows = batch_rows(batch)
    for row in range(rows):
        yield {
            key: value[row : row + 1] if isinstance(value, Tensor) and value.dim() and len(value) == rows else value
            for key, value in batch.items()
        }
