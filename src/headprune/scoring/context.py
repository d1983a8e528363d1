"""What every scorer is given: model, batches, losses of examples and their gradients; and where it puts its numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headprune.errors import DataError, MaskError, UnsupportedModelError
from headprune.heads import HeadMap, HeadScores, Site
from headprune.hooks import joined_heads
from headprune.masking import masked
from headprune.structure.run import eval_mode, kept_draws, same_attributes
from headprune.types import Batch, Outputs

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
    def config(self) -> object:
        return getattr(self.model, "config", None)

    @property
    def has_encoder(self) -> bool:
        """Whether the model reads one text and writes another."""
        return bool(getattr(self.config, "is_encoder_decoder", False))

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

    def scores(self, method: str, **options: object) -> HeadScores:
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
        with kept_draws(model), same_attributes(model), eval_mode(model), joined_heads(model):
            yield
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)


def batches_of(
    data: Any, device: torch.device, *, collator: Any = None, batch_size: int = 16
) -> Iterator[dict[str, Any]]:
    """Batches on the device, from a DataLoader, a list of batches, or a dataset of examples with a collator."""
    if data is None:
        raise DataError("There is no data (None); expected a DataLoader, a list of batches, or a dataset.")
    if isinstance(data, Mapping):
        raise DataError("Found one batch; expected several. Put it into a list: [batch].")
    if _is_dataset(data):
        from torch.utils.data import DataLoader

        collator = collator or _padded
        data = DataLoader(data, batch_size=batch_size, shuffle=False, collate_fn=collator)
    for batch in data:
        if not isinstance(batch, Mapping):
            raise DataError(
                f"A batch is a {type(batch).__name__}; expected a table of model inputs with labels. "
                "Pass a DataLoader, a list of batches, or a dataset and its collator."
            )
        _refuse_single_examples(batch)
        yield on_device(batch, device)


def _padded(rows: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Rows of a dataset as it comes: lists of numbers are padded on the right, with a mask; text is left out."""
    names = [name for name, value in rows[0].items() if not isinstance(value, str)]
    if not names:
        raise DataError(_nothing_to_read(rows[0]))
    found: dict[str, Any] = {}
    for name in names:
        values = [row[name] for row in rows]
        if isinstance(values[0], list | tuple) or (isinstance(values[0], Tensor) and values[0].dim() == 1):
            found[name] = _padded_lines([torch.as_tensor(one) for one in values], IGNORED if name == "labels" else 0)
        else:
            found[name] = torch.utils.data.default_collate(values)
    if not any(isinstance(value, Tensor) and value.dim() > 1 for value in found.values()):
        raise DataError(_nothing_to_read(rows[0]))
    ids = found.get("input_ids")
    if isinstance(ids, Tensor) and "attention_mask" not in found:
        ones = [torch.ones(len(row["input_ids"]), dtype=torch.long) for row in rows]
        found["attention_mask"] = _padded_lines(ones, 0)
    if "labels" not in found and isinstance(found.get("label"), Tensor):
        found["labels"] = found.pop("label")
    return found


def _nothing_to_read(row: Mapping[str, object]) -> str:
    return (
        f"The dataset has the columns {', '.join(map(str, row))}, none of which a model reads. Tokenize it first: "
        "dataset.map(lambda rows: tokenizer(rows['text'], truncation=True), batched=True)."
    )


def _padded_lines(lines: list[Tensor], value: int) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(lines, batch_first=True, padding_value=value)


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


def _is_dataset(data: object) -> bool:
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


LossFunction = Callable[[Outputs, Batch], Tensor]
IGNORED = -100


class ExampleLoss:
    """Callable: the model's output and the batch to one loss per example (batch,)."""

    def __init__(self, loss: Literal["mean", "sum"] | LossFunction = "mean") -> None:
        self.sums = loss == "sum"
        self.given = loss if callable(loss) else None
        if self.given is None and loss not in ("mean", "sum"):
            raise DataError(f"loss is {loss!r}; expected 'mean', 'sum' or a function of outputs and batch.")
        self._arrangement: Callable[[Outputs, Batch], tuple[Tensor, Tensor]] | None = None

    def __call__(self, outputs: Outputs, batch: Batch) -> Tensor:
        if self.given is not None:
            losses = self.given(outputs, batch)
        else:
            sums, counts = self.parts(outputs, batch)
            losses = sums if self.sums else sums / counts.clamp_min(1)
        if losses.dim() != 1:
            raise DataError(f"The loss function returned shape {tuple(losses.shape)}; expected one number per example.")
        if not bool(losses.detach().isfinite().all()):
            row = int((~losses.detach().isfinite()).nonzero()[0])
            raise DataError(f"The loss of example {row} of a batch is not finite. Look at its inputs and labels.")
        return losses

    def parts(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Tensor]:
        """The summed loss of each example's target tokens, and their number."""
        if self._arrangement is None:
            self._arrangement = _find_arrangement(outputs, batch)
        return self._arrangement(outputs, batch)


_OWN_ERROR = {torch.bfloat16: 2e-2, torch.float16: 4e-3}  # of a loss that a model computes in half precision


def _find_arrangement(outputs: Outputs, batch: Batch) -> Callable[[Outputs, Batch], tuple[Tensor, Tensor]]:
    own = getattr(outputs, "loss", None)
    if own is None:
        raise UnsupportedModelError(
            "The model computed no loss: its batches need labels. Add them, or pass loss=, a function(outputs, batch)."
        )
    if not bool(own.detach().isfinite().all()):
        raise DataError(
            f"The model's loss is {float(own.detach())} on the first batch. Look at its weights and inputs."
        )
    allowed = _OWN_ERROR.get(own.dtype, 1e-3)
    gaps: list[tuple[float, Callable[[Outputs, Batch], tuple[Tensor, Tensor]]]] = []
    for arrangement in _ARRANGEMENTS:
        try:
            sums, counts = arrangement(outputs, batch)
        except (KeyError, TypeError, IndexError, RuntimeError, ValueError, AttributeError):
            continue
        by_token = sums.sum() / counts.sum().clamp_min(1)
        by_example = (sums / counts.clamp_min(1)).mean()
        for total in (by_token, by_example):
            if torch.isclose(total.detach().float(), own.detach().float(), rtol=allowed, atol=1e-4):
                gaps.append((abs(float(total.detach()) - float(own.detach())), arrangement))
    if gaps:  # the nearest: on an untrained model, several may be near
        return min(gaps, key=lambda item: item[0])[1]
    raise UnsupportedModelError(
        "The model's own loss is not a mean over examples or target tokens that headprune knows. "
        "Pass loss=, a function of outputs and batch that returns one loss per example."
    )


def _class_labels(outputs: Outputs, batch: Batch) -> tuple[Tensor, Tensor]:
    """One class per example."""
    losses = F.cross_entropy(outputs.logits.float(), batch["labels"].view(-1), reduction="none")
    return losses, torch.ones_like(losses)


def _regression(outputs: Outputs, batch: Batch) -> tuple[Tensor, Tensor]:
    labels = batch["labels"].float().view(len(outputs.logits), -1)
    losses = F.mse_loss(outputs.logits.float().view_as(labels), labels, reduction="none").mean(1)
    return losses, torch.ones_like(losses)


def _several_labels(outputs: Outputs, batch: Batch) -> tuple[Tensor, Tensor]:
    losses = F.binary_cross_entropy_with_logits(outputs.logits.float(), batch["labels"].float(), reduction="none")
    return losses.mean(1), torch.ones_like(losses[:, 0])


def _tokens(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    if logits.dim() != 3:
        raise ValueError(f"logits of shape {tuple(logits.shape)}; expected (batch, length, vocabulary)")
    # With the vocabulary last, as it is in memory: over the middle of (batch, vocabulary, length) it takes ten times
    # as long.
    by_token = F.cross_entropy(
        logits.float().flatten(0, 1), labels.flatten(), reduction="none", ignore_index=IGNORED
    )  # (batch * length,)
    losses = by_token.view(labels.shape)
    return losses.sum(1), (labels != IGNORED).sum(1).to(losses.dtype)  # (batch,)


def token_labels(outputs: Outputs, batch: Batch) -> tuple[Tensor, Tensor]:
    """A label at every position: tagging, masked language models, encoder-decoders."""
    return _tokens(outputs.logits, batch["labels"])


def next_tokens(outputs: Outputs, batch: Batch) -> tuple[Tensor, Tensor]:
    """Causal language models: position t predicts label t + 1."""
    labels = F.pad(batch["labels"][:, 1:], (0, 1), value=IGNORED)  # shorter logits would be a copy of all of them
    return _tokens(outputs.logits, labels)


def _answer_spans(outputs: Outputs, batch: Batch) -> tuple[Tensor, Tensor]:
    """Question answering: the mean of start and end."""
    ends = [(outputs.start_logits, batch["start_positions"]), (outputs.end_logits, batch["end_positions"])]
    losses = [F.cross_entropy(logits.float(), place.view(-1), reduction="none") for logits, place in ends]
    return (losses[0] + losses[1]) / 2, torch.ones_like(losses[0])


_ARRANGEMENTS = (_class_labels, next_tokens, token_labels, _regression, _several_labels, _answer_spans)


Gradients = dict[str, Tensor]


def example_gradients(job: ScoringContext, batch: Batch) -> Gradients:
    """dL(x)/dξ for every example x of the batch: site -> (batch, heads).

    Each example has a mask of its own, so one backward of the summed loss gives every example's gradient. Where the
    output projection does not see the batch first (Swin's windows), examples go one by one.
    """
    try:
        return _gradients(job, batch, (batch_rows(batch),))
    except MaskError:
        parts = [_gradients(job, example, ()) for example in single_examples(batch)]
        return {site: torch.stack([part[site] for part in parts]) for site in parts[0]}


def with_gradients(
    total: Tensor, contexts: Mapping[str, list[Tensor]], sites: Sequence[Site]
) -> dict[str, list[tuple[Tensor, Tensor]]]:
    """What output projections received, each with the gradient of a loss: site -> one pair a call."""
    flat = [(site.id, context) for site in sites for context in contexts[site.id]]
    grads = torch.autograd.grad(total, [context for _, context in flat], allow_unused=True, materialize_grads=True)
    found: dict[str, list[tuple[Tensor, Tensor]]] = {site.id: [] for site in sites}
    for (name, context), grad in zip(flat, grads, strict=True):
        found[name].append((context.detach(), grad))
    return found


def batch_gradients(job: ScoringContext, batch: Batch) -> Gradients:
    """d(mean loss)/dξ with one mask for the whole batch: site -> (1, heads)."""
    found = _gradients(job, batch, ())
    return {site: grad.unsqueeze(0) / batch_rows(batch) for site, grad in found.items()}


def _gradients(job: ScoringContext, batch: Batch, shape: tuple[int, ...]) -> Gradients:
    sites = [site for site in job.heads if site.num_heads]
    device = next(job.model.parameters()).device
    masks = {s.id: torch.ones(*shape, s.original_num_heads, device=device, requires_grad=True) for s in sites}
    with torch.enable_grad(), masked(job.model, masks, heads=job.heads):
        total = job.example_losses(batch).sum()  # sum: each row keeps its own gradient
    grads = torch.autograd.grad(total, list(masks.values()), allow_unused=True)
    return {
        site.id: torch.zeros(*shape, site.num_heads, device=device) if grad is None else grad[..., list(site.kept)]
        for site, grad in zip(sites, grads, strict=True)
    }


@contextmanager
def equations_of(what: str) -> Iterator[None]:
    """Says what to do where equations have no single answer."""
    try:
        yield
    except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
        raise DataError(
            f"{what} solves equations that have no single answer on this data ({error}). Give it a larger ridge, or "
            "more examples."
        ) from error
