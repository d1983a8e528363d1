"""Moments of each site in the order of the model, what comes before it repaired already; and the fits made of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from headprune.heads import HeadMask, Site
from headprune.hooks import Recording, StopForward, heard_inputs, recorded, replayed
from headprune.masking import masked
from headprune.memory import memory_for_step
from headprune.recovery.stream import Streams, written
from headprune.registry import Registry
from headprune.scoring.context import ScoringContext, equations_of
from headprune.scoring.moments import Moments, moments_of, real_rows, site_calls
from headprune.structure.run import difference
from headprune.types import Batch


@dataclass(frozen=True)
class Fit:
    """The output projection of one site, (outputs, heads * width) and (outputs,), in float64."""

    weight: Tensor
    bias: Tensor | None

    def error(self, other: Fit, moments: Moments, kept: Tensor) -> float:
        """The mean squared distance of this projection of all heads from another one of the kept columns."""
        rows = _some_rows(len(self.weight))
        gap = -self.weight[rows]
        gap[:, kept] += other.weight[rows][:, kept]
        zero = torch.zeros(len(self.weight), dtype=torch.float64)
        shift = (other.bias if other.bias is not None else zero) - (self.bias if self.bias is not None else zero)
        used = gap.any(0)  # before a repair, only columns of what goes
        gap, within = gap[:, used], moments.second[used][:, used] / moments.count
        mean = gap @ moments.mean[used]
        spread = ((gap @ within) * gap).sum() - mean.square().sum()
        return float(spread + (mean + shift[rows]).square().sum()) * len(self.weight) / len(gap)

    def stream_error(self, other: Fit, moments: Moments, kept: Tensor) -> float:
        """The mean squared distance of the stream behind another projection, of the kept columns, from the whole
        model's."""
        assert moments.drift is not None, "asked for where it is known"
        gap = -self.weight.clone()
        gap[:, kept] += other.weight[:, kept]
        none = torch.zeros(len(gap), dtype=torch.float64)
        shift = (other.bias if other.bias is not None else none) - (self.bias if self.bias is not None else none)
        drift, mean = moments.drift, gap @ moments.mean
        spread = ((gap @ moments.products(centred=False)) * gap).sum() + 2 * shift @ mean + shift.square().sum()
        along = (gap * drift.products(centred=False)).sum() + shift @ drift.mean
        return float(spread - 2 * along) + drift.square / drift.count


ERROR_ROWS = 256  # outputs by which an error is told; those of a wider projection are much alike


def _some_rows(outputs: int) -> Tensor:
    """All outputs; of more than so many, some at equal distances."""
    return torch.linspace(0, outputs - 1, min(outputs, ERROR_ROWS)).round().long()


Recovery = Callable[..., Fit]
Function = TypeVar("Function", bound=Recovery)
recoveries: Registry[Recovery] = Registry("recovery", "headprune.recoveries")


def looks_at_stream(recovery: Function) -> Function:
    """Marks a repair that wants to know how far the stream has drifted, and rows to judge a fit on."""
    vars(recovery)["looks_at_stream"] = True
    return recovery


def judged_on_held_rows(recovery: Function) -> Function:
    """Marks a repair that chooses something by rows that a fit did not see."""
    vars(recovery)["judged_on_held_rows"] = True
    return recovery


def columns_of(heads: Sequence[int], width: int) -> Tensor:
    """The columns of an output projection that belong to heads, given by their place in it."""
    return torch.tensor([head * width + i for head in heads for i in range(width)], dtype=torch.long)


def other_columns(kept: Sequence[int], width: int, full: Fit) -> Tensor:
    """The columns of all other heads."""
    heads, stay = full.weight.shape[1] // width, set(kept)
    return columns_of([head for head in range(heads) if head not in stay], width)


def fitted(method: str, full: Fit, moments: Moments, kept: Sequence[int], width: int, **options: object) -> Fit:
    """By the name of a method."""
    with equations_of(f"The repair '{method}'"):
        return recoveries[method](full, moments, kept, width, **options)


ADDED = "+"  # the name under which what is added to a site's answer is heard


@dataclass(frozen=True)
class _Waiting:
    """A forward pass of one batch that stopped at a projection."""

    recording: Recording
    projection: nn.Module
    size: int


class SequentialMoments:
    """Moments of one site after another, each on what the model gives with everything that was done to earlier sites.

    The pass of each batch waits at the site at hand and goes on from there, so that going through all sites costs
    about one forward pass over the data, not one for each site. Passes run from the beginning where a site is called
    several times (layers that share it), where going on fails or gives something else than a whole pass (checked on the
    first batch, at the first and the last such site), and for batches beyond `memory`.
    """

    def __init__(
        self,
        context: ScoringContext,
        sites: Sequence[Site],
        batches: Sequence[Batch],
        mask: HeadMask,
        *,
        memory: int | None = None,
        streams: Streams | None = None,
        held: Collection[int] = (),
        calls: Mapping[str, int] | None = None,
    ) -> None:
        """`calls` says in which order sites are called, and how often, where that was seen before on a layer of the
        same kind: then nothing is checked again."""
        self.context, self.batches, self.mask = context, batches, mask
        self.streams, self.held = streams, held
        is_known, calls = calls is not None, calls if calls is not None else site_calls(context, sites, batches)
        self.calls = calls
        by_id = {site.id: site for site in sites}
        self.sites = [by_id[name] for name in calls]
        memory = memory_for_step() if memory is None else memory  # what does not fit is run from the beginning
        self._goes_on = memory > 0 and all(count == 1 for count in calls.values())
        self._to_check = set() if is_known else {site.id for site in (self.sites[1:2] + self.sites[-1:])}
        self._room = memory
        self._waiting: dict[int, _Waiting] = {}

    def moments(self, site: Site) -> Moments:
        """Of what all heads of the site write. Sites are asked for in the order of `sites`."""
        if self._goes_on and self._waiting and site.id in self._to_check and not self._is_valid(site):
            self._goes_on, self._waiting = False, {}
        if self._goes_on:
            try:
                return self._moments_going_on(site)
            except Exception:  # whatever a model's code stumbles over when it is entered in the middle
                if not self._waiting:
                    raise
                self._goes_on, self._waiting = False, {}
        return moments_of(self.context, [site], self.batches, self.mask)[site.id]

    def _moments_going_on(self, site: Site) -> Moments:
        found = Moments(held=Moments() if self.held else None)
        for number, batch in enumerate(self.batches):
            heard = self._heard(number, site, wait=True)
            if not heard:
                continue
            rows, *added = (real_rows(batch, site, x, has_encoder=self.context.has_encoder) for x in heard)
            drift = None
            if self.streams is not None and added:
                drift = self.streams.drift(number, site, written(self.context.model, site, rows), added[0])
            found.add(rows, drift)
            if found.held is not None and number in self.held:
                found.held.add(rows, drift)
        return found

    def answer(self, number: int) -> Any:
        """What the model as it is says to a batch, under the mask: the pass that waits there goes on to its end."""
        waiting = self._waiting.pop(number, None) if self._goes_on else None
        self._room += waiting.size if waiting is not None else 0
        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            stack.enter_context(masked(self.context.model, self.mask, heads=self.context.heads))
            if waiting is not None:
                stack.enter_context(replayed(self.context.model, waiting.recording, waiting.projection))
            return self.context.answer(self.batches[number])

    def _heard(self, number: int, site: Site, *, wait: bool) -> list[Tensor]:
        """What the site's projection receives for a batch, every head of it, and what will be added to its answer, if
        that is known (nothing, if the batch does not reach it); with `wait` the pass goes on from there the next
        time."""
        projection = self.context.model.get_submodule(site.output)
        before = self._waiting.get(number)
        heard: list[Tensor] = []
        added: list[Tensor] = []
        listening = {site.id: projection}
        if self.streams is not None and site.id in self.streams.modules:
            listening[ADDED] = self.context.model.get_submodule(self.streams.modules[site.id])

        def hear(name: str, inputs: Tensor) -> None:
            (added if name == ADDED else heard).append(inputs)
            if name != ADDED:
                raise StopForward

        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            stack.enter_context(heard_inputs(self.context.model, listening, hear))  # before masks: all heads
            stack.enter_context(masked(self.context.model, self.mask, heads=self.context.heads))
            if before is not None:
                stack.enter_context(replayed(self.context.model, before.recording, before.projection))
            recording = stack.enter_context(recorded(self.context.model)) if wait else None
            stack.enter_context(suppress(StopForward))
            self.context.answer(self.batches[number])
        if recording is not None and heard:
            self._wait(number, recording, projection)
        return [*heard, *added[-1:]]

    def _wait(self, number: int, recording: Recording, projection: nn.Module) -> None:
        before = self._waiting.pop(number, None)
        self._room += before.size if before is not None else 0
        recording.keep_only([projection])
        size = recording.size()
        if size <= self._room:
            self._room -= size
            self._waiting[number] = _Waiting(recording, projection, size)

    def _is_valid(self, site: Site) -> bool:
        """Whether going on gives what a whole pass gives, on a batch that waits."""
        number, waiting = next(iter(self._waiting.items()))
        try:
            quick = self._heard(number, site, wait=False)
        except Exception:  # the model's code cannot be entered in the middle
            return False
        del self._waiting[number]
        whole = self._heard(number, site, wait=False)
        self._waiting[number] = waiting
        if not quick or not whole:
            return quick == whole
        return difference(quick[0], whole[0]).largest <= 1e-6 * max(1.0, float(whole[0].abs().max()))
