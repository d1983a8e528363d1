"""Calibration data taken through a model layer by layer: the states of all batches are kept, one layer runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from headprune.heads import HeadMap, Site
from headprune.hooks import LayerCall, LayerModel, NotAStackError, layer_calls, states_after_first
from headprune.memory import memory_for_step
from headprune.scoring.context import ScoringContext
from headprune.structure.equal_layers import layer_paths, sites_by_layer
from headprune.structure.run import takes_use_cache
from headprune.types import Batch


@dataclass
class LayerStates:
    """Where the data is: before one of the layers. The states move on with `advance`."""

    context: ScoringContext
    paths: tuple[str, ...]
    batches: Sequence[Batch]
    calls: list[tuple[LayerCall, ...]]  # of each batch, for each layer
    states: list[Tensor]  # of each batch
    place: int = 0
    sites: dict[str, list[Site]] = field(default_factory=dict)  # by the path of their layer

    @classmethod
    def before_first(cls, context: ScoringContext, batches: Sequence[Batch]) -> LayerStates:
        """Refused (NotAStackError) where the model is no plain stack of layers, or its states are too large to keep."""
        paths = layer_paths(context.model)
        sites = sites_by_layer(context.heads, paths)
        layers = [context.model.get_submodule(path) for path in paths]
        calls, states, room = [], [], memory_for_step()
        if takes_use_cache(context.model):  # which would be filled again each time a layer runs
            batches = [{"use_cache": False, **batch} for batch in batches]
        for batch in batches:
            with torch.no_grad():
                found = layer_calls(layers, lambda batch=batch: context.answer(batch))  # type: ignore[misc]
            room -= 2 * found.states.numel() * found.states.element_size()
            if room < 0:
                raise NotAStackError("the states of the data do not fit into memory")
            calls.append(found.calls)
            states.append(found.states)
        return cls(context, paths, batches, calls, states, sites=sites)

    @property
    def path(self) -> str:
        return self.paths[self.place]

    def layer_context(self) -> ScoringContext:
        """The layer at hand as a model, with its sites, and the data before it."""
        layer = self.context.model.get_submodule(self.path)
        model = LayerModel(layer, self.path, self.context.config)
        heads = HeadMap(tuple(self.sites.get(self.path, ())), model_type=self.context.heads.model_type)
        batches = [
            {**batch, "layer_states": states, "layer_call": calls[self.place]}
            for batch, states, calls in zip(self.batches, self.states, self.calls, strict=True)
        ]
        return replace(self.context, model=model, heads=heads, batches=batches)

    def check(self) -> None:
        """A whole pass over the first batch gives to the second layer what we would."""
        if len(self.paths) < 2:
            return
        layers = [self.context.model.get_submodule(path) for path in self.paths]
        with torch.no_grad():
            whole = states_after_first(layers, lambda: self.context.answer(self.batches[0]))
            found = self.layer_context()
            ours = found.answer(next(iter(found.batches)))
        if whole is None or whole.shape != ours.shape or not torch.allclose(whole, ours, rtol=1e-4, atol=1e-5):
            raise NotAStackError("its layers do not give one by one what they give together")

    def advance(self, answers: Callable[[int], Any] | None = None) -> None:
        """Behind the layer at hand, as `answers` runs it on each batch."""
        context = self.layer_context()
        batches = list(context.batches)
        for number in range(len(batches)):
            with torch.no_grad():
                found = context.answer(batches[number]) if answers is None else answers(number)
            self.states[number] = found
        self.place += 1
