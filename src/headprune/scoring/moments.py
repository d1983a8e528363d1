"""What the heads of a site write on calibration data: first and second moments, in float64 and bounded memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import torch
from torch import Tensor

from headprune.errors import DataError
from headprune.heads import HeadMask, Site
from headprune.hooks import StopForward, heard_inputs
from headprune.masking import masked
from headprune.scoring.context import ScoringContext, batch_rows
from headprune.types import Batch


def real_positions(batch: Batch, component: str, like: Tensor, *, has_encoder: bool) -> Tensor:
    """1.0 at real query positions and 0.0 at padding: (batch, positions), shaped as the first two of `like`.

    Encoder sites follow the attention mask of the input, decoder and cross sites of an encoder-decoder that of the
    target (or its labels; that of the input, where the decoder reads the input again to classify it). Where nothing of
    that shape is in the batch, every position is real.
    """
    own, labels, source = (_by_row(batch.get(name)) for name in ("decoder_attention_mask", "labels", "attention_mask"))
    is_target = component != "encoder" and has_encoder  # labels of a decoder alone may hide what is only read
    candidates = [own if component != "encoder" else None]
    if is_target:
        candidates.append(labels != -100 if labels is not None else None)
    if not is_target or (labels is None and "decoder_input_ids" not in batch):
        candidates.append(source)
    for found in candidates:
        if found is not None and found.shape == like.shape[:2]:
            return found.to(like)
    return torch.ones(like.shape[:2], dtype=like.dtype, device=like.device)


def _by_row(value: object) -> Tensor | None:
    """(batch, positions); several texts of an example (the choices of a question) one after another."""
    return value.flatten(1) if isinstance(value, Tensor) and value.dim() > 1 else None


def by_example(batch: Batch, values: Tensor, *, batch_axis: int = 0) -> Tensor | None:
    """What was computed at positions, with examples first: (batch, positions, …). Windows of a picture are joined.

    None where rows are of no example in particular: tokens that were sent to an expert, pictures of all examples in one
    row.
    """
    values, rows = values.movedim(batch_axis, 0), batch_rows(batch)
    if values.dim() == 3 and values.shape[0] == rows:
        return values
    if rows > 1 and not _comes_in_equal_parts(batch, values, rows):
        return None
    return values.reshape(rows, -1, values.shape[-1])


def _comes_in_equal_parts(batch: Batch, values: Tensor, rows: int) -> bool:
    """Windows, so many of each picture; or positions in one row, as many as the texts of the batch have."""
    if values.dim() > 2:
        return values.shape[0] % rows == 0
    texts = [text for text in map(_by_row, batch.values()) if text is not None and len(text) == rows]
    return any(values.shape[0] == text.numel() for text in texts)


def real_rows(batch: Batch, site: Site, values: Tensor, *, has_encoder: bool) -> Tensor:
    """The rows of an output projection's input at real positions: (rows, width). All, where they are of no example."""
    ordered = by_example(batch, values, batch_axis=site.batch_axis)
    if ordered is None:
        return values.flatten(0, -2)
    return ordered[real_positions(batch, site.side, ordered, has_encoder=has_encoder) > 0]


def example_means(batch: Batch, site: Site, values: Tensor, *, has_encoder: bool, batch_axis: int = 0) -> Tensor:
    """The mean of each example over its real positions: (batch, …). The mean over all for each, where rows are of no
    example in particular."""
    ordered = by_example(batch, values, batch_axis=batch_axis)
    if ordered is None:
        return values.flatten(0, -2).mean(0).expand(batch_rows(batch), -1)
    weights = real_positions(batch, site.side, ordered, has_encoder=has_encoder)
    return (ordered * weights.unsqueeze(-1)).sum(1) / weights.sum(1, keepdim=True).clamp_min(1)


MEMORY = 4 * 2**30  # bytes of matrices at a time


def squares(rows: Tensor) -> Tensor:
    """The sum of outer products of rows, (width, width), in float64: what is solved with it may be nearly singular, and
    in float32 another order of neurons came out."""
    exact = rows.detach().cpu().double()
    return exact.T @ exact


@dataclass(frozen=True)
class Drift:
    """Sums over rows of what the whole model's stream has that the model at hand has not, and with the rows."""

    count: float
    rows: Tensor  # (width,)
    total: Tensor  # (outputs,)
    cross: Tensor  # (outputs, width)
    square: float

    def plus(self, other: Drift, sign: float) -> Drift:
        return Drift(
            self.count + sign * other.count, self.rows + sign * other.rows, self.total + sign * other.total,
            self.cross + sign * other.cross, self.square + sign * other.square,
        )  # fmt: skip

    @property
    def mean(self) -> Tensor:
        return self.total / self.count

    def products(self, *, centred: bool) -> Tensor:
        """The mean product, or the covariance, of drift and rows: (outputs, width)."""
        products = self.cross / self.count
        return products - torch.outer(self.mean, self.rows / self.count) if centred else products


@dataclass
class Moments:
    """Sums over rows of an output projection's input: their number, the rows, their outer products."""

    count: float = 0.0
    total: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))  # (width,)
    second: Tensor = field(default_factory=lambda: torch.zeros(0, 0, dtype=torch.float64))  # (width, width)
    drift: Drift | None = None  # of the stream behind the projection, for repairs that look at it
    held: Moments | None = None  # of some of the rows, which a fit may leave out to be judged on them

    def add(self, rows: Tensor, drift: Tensor | None = None) -> None:
        """More rows, (rows, width), and how far the stream behind each has drifted, (rows, outputs)."""
        rows = rows.detach().cpu()
        more = Moments(float(len(rows)), rows.double().sum(0), squares(rows))
        if drift is not None:
            gone = drift.detach().cpu().float()
            cross = (gone.T @ rows.float()).double()
            more.drift = Drift(more.count, more.total, gone.double().sum(0), cross, float(gone.double().square().sum()))
        self.merge(more)

    def merge(self, other: Moments, sign: float = 1.0) -> None:
        """Add the sums of other rows, or with a sign of -1 take them away."""
        if not len(self.total):
            self.total, self.second = torch.zeros_like(other.total), torch.zeros_like(other.second)
        self.count += sign * other.count
        self.total += sign * other.total
        self.second += sign * other.second
        if other.drift is not None:
            self.drift = other.drift if self.drift is None else self.drift.plus(other.drift, sign)

    def fitted_rows(self) -> Moments:
        """Without the rows that are held out."""
        found = Moments(self.count, self.total.clone(), self.second.clone(), self.drift)
        if self.held is not None:
            found.merge(self.held, -1.0)
        return found

    def checked(self, site: Site) -> Moments:
        """One number that is not finite would be in every weight that is fitted, and so would a mean of nothing."""
        if not self.count:
            raise DataError(f"{site.id} is not reached by any batch of the calibration data: pass data that it sees.")
        if not bool(self.second.isfinite().all()):
            raise DataError(
                f"What the heads of {site.id} write on the calibration data is not finite (in half precision a number "
                "may be too large). Look for the example, or load the model in float32 or bfloat16."
            )
        return self

    @property
    def mean(self) -> Tensor:
        return self.total / self.count

    def products(self, *, centred: bool) -> Tensor:
        """The mean outer product of rows, or their covariance: (width, width)."""
        products = self.second / self.count
        return products - torch.outer(self.mean, self.mean) if centred else products


def site_calls(job: ScoringContext, sites: Sequence[Site], batches: Iterable[Batch]) -> dict[str, int]:
    """How often a forward pass calls each site, in the order in which it comes to them: a decoder's self- and
    cross-attention take turns.

    Batches are run until every site was heard: some may have no pictures.
    """
    calls: dict[str, int] = {}
    order: list[str] = []
    modules = {site.id: job.model.get_submodule(site.output) for site in sites}
    for batch in batches:
        if len(calls) == len(sites):
            break
        heard: dict[str, int] = {}

        def hear(name: str, inputs: Tensor, heard: dict[str, int] = heard) -> None:
            heard[name] = heard.get(name, 0) + 1

        with torch.no_grad(), heard_inputs(job.model, modules, hear):
            job.answer(batch)
        calls |= {name: max(count, calls.get(name, 0)) for name, count in heard.items()}
        order = _merged(order, list(heard))
    missing = [site.id for site in sites if site.id not in calls]
    if missing:
        raise DataError(f"{missing[0]} is not reached by any batch of the calibration data: pass data that it sees.")
    return {name: calls[name] for name in order}


def _merged(order: list[str], another: Sequence[str]) -> list[str]:
    """Both orders in one: what is new comes before what follows it in the other (a batch of text alone does not run the
    part for pictures, whose sites come first all the same)."""
    merged, following = list(order), len(order)
    for name in reversed(another):
        if name in merged:
            following = merged.index(name)
        else:
            merged.insert(following, name)
    return merged


def within_memory(sites: Sequence[Site], copies: int) -> list[list[Site]]:
    """Sites in parts whose matrices of second moments, so many for each site, fit into 4 GiB; at least one a part."""
    parts: list[list[Site]] = []
    room = 0
    for site in sites:
        size = copies * 8 * (site.num_heads * site.head_dim) ** 2
        if not parts or size > room:
            parts.append([])
            room = MEMORY
        parts[-1].append(site)
        room -= size
    return parts


def moments_of(
    job: ScoringContext, sites: Sequence[Site], batches: Iterable[Batch], mask: HeadMask | None = None
) -> dict[str, Moments]:
    """Moments of what all heads of these sites write, with only the heads of `mask` heard by what comes after.

    After the first, a forward pass ends where the last of the sites has been heard.
    """
    found = {site.id: Moments() for site in sites}
    modules = {site.id: job.model.get_submodule(site.output) for site in sites}
    by_id = {site.id: site for site in sites}
    usual = sum(len(site.layers) for site in sites)  # calls in a pass: a block that layers share is called for each
    stop_after = 0
    for number, batch in enumerate(batches):
        listener = MomentsListener(found, by_id, batch, job.has_encoder, stop_after)
        hearing = heard_inputs(job.model, modules, listener)  # before the masks, so that every head is heard
        masking = masked(job.model, mask if mask is not None else {}, heads=job.heads)
        with torch.no_grad(), hearing, masking, suppress(StopForward):
            job.answer(batch)
        if number == 0 and listener.heard == usual:
            stop_after = usual  # otherwise how often blocks run depends on the input (pictures, streams)
    if any(not moments.count for moments in found.values()):
        raise DataError("The calibration data has no batch that reaches every site. Check the file and its filters.")
    return {site.id: found[site.id].checked(site) for site in sites}


@dataclass
class MomentsListener:
    """Adds what is heard to the moments, and ends the pass when there is no more to come."""

    found: dict[str, Moments]
    sites: Mapping[str, Site]
    batch: Batch
    has_encoder: bool
    stop_after: int = 0  # calls after which nothing more is asked for; 0: the pass goes on to its end
    heard: int = 0

    def __call__(self, name: str, inputs: Tensor) -> None:
        self.found[name].add(real_rows(self.batch, self.sites[name], inputs, has_encoder=self.has_encoder))
        self.heard += 1
        if self.heard == self.stop_after:
            raise StopForward
