"""The weights with which a model did best while it was trained, kept in a file for a run that is interrupted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

NAME = "best.safetensors"
KEY = "worse_by"  # in the file's own notes: the number that was least


class BestState:
    """Training can make a model worse: whoever looks after every epoch can have the best state back.

    `measure` says how bad a model is. What an interrupted run of the same training found is known again; the
    folder is that run's own.
    """

    def __init__(self, folder: Path, measure: Callable[[nn.Module], float], *, goes_on: bool) -> None:
        self.path, self.measure = folder / NAME, measure
        self.seen: list[float] = []
        if not goes_on:
            self.path.unlink(missing_ok=True)
        self.least = self._stored()

    def look(self, model: nn.Module) -> Mapping[str, float]:
        """Keep the weights if they are the best so far."""
        value = self.measure(model)
        self.seen.append(value)
        if value < self.least:
            self.least = value
            self.path.parent.mkdir(parents=True, exist_ok=True)
            weights = {name: parameter.detach().contiguous() for name, parameter in model.named_parameters()}
            fresh = self.path.with_suffix(".new")
            save_file(weights, fresh, metadata={KEY: repr(value)})
            fresh.replace(self.path)
        return {"distance": value}

    def restore_(self, model: nn.Module) -> None:
        """The best state, as it was."""
        own = dict(model.named_parameters())
        with safe_open(self.path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  # no mapping
                own[name].data.copy_(file.get_tensor(name))

    def _stored(self) -> float:
        try:
            with safe_open(self.path, framework="pt") as file:
                return float((file.metadata() or {})[KEY])
        except (OSError, SafetensorError, KeyError, ValueError):
            return float("inf")
