"""What a model costs: parameters, MACs, time, memory, cache."""

from __future__ import annotations

import dataclasses
import statistics
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from headprune.cost.macs import Count, count_macs, count_parameters
from headprune.errors import HeadpruneError
from headprune.heads import HeadMap
from headprune.heads.show import frame, table
from headprune.structure.dummy_inputs import example_inputs
from headprune.structure.find import find_heads
from headprune.structure.run import run, same_attributes, to_model, unwrapped
from headprune.types import Args, Batch, Function, Kwargs


@dataclass(frozen=True)
class Timing:
    """Seconds per forward pass, and how far the same model's time wanders from itself."""

    median: float
    low: float  # first quartile
    high: float  # third quartile
    repeats: int
    examples_per_second: float
    control: float  # A/A: median ratio of two interleaved series of the same model; 1.0 on an ideal machine
    control_spread: tuple[float, float]  # quartiles of that ratio
    speedup: float | None = None  # median ratio against the other model, interleaved in pairs
    speedup_spread: tuple[float, float] | None = None


@dataclass(frozen=True)
class Measurement:
    """Everything `measure` found."""

    heads: int
    parameters: Count
    macs: Count
    batch: int
    length: int | None
    timing: Timing | None
    peak_memory: int | None  # bytes that one forward pass allocates at most, weights not included
    cache_bytes_per_token: int | None

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def facts(self) -> list[tuple[str, str]]:
        """What a person wants to know, in order."""
        told = [("heads", f"{self.heads:,}"), ("parameters", f"{self.parameters.total:,}"),
                ("MACs", f"{self.macs.total:,} (batch {self.batch}, length {self.length})")]  # fmt: skip
        if self.timing is not None:
            told.append(("examples a second", f"{self.timing.examples_per_second:.1f}"))
        if self.timing is not None and self.timing.speedup is not None:
            told.append(("speed", f"{self.timing.speedup:.2f} times (itself against itself {self.timing.control:.2f})"))
        return told

    def __repr__(self) -> str:
        return f"Measurement({'; '.join(f'{name} {value}' for name, value in self.facts())})"

    def _repr_html_(self) -> str:
        return table(self.facts(), ("", "measured"))

    def to_frame(self) -> Any:
        """A frame of pandas: a row a part of the model."""
        parts = {**self.parameters.parts, **self.macs.parts}
        return frame([
            {"part": name, "parameters": self.parameters.parts.get(name), "macs": self.macs.parts.get(name)}
            for name in parts
        ])  # fmt: skip


def measure(
    model: nn.Module,
    *,
    batch: int = 1,
    length: int = 128,
    example: Batch | None = None,
    against: nn.Module | None = None,
    repeats: int = 15,
    warmup: int = 2,
) -> Measurement:
    """Measure a model on an input of the given shape, or on `example`.

    Times are taken in interleaved rounds: this model, itself again (the A/A control), and `against` if given, so that
    a noisy machine disturbs all alike. A speed-up smaller than the control's spread means nothing. `repeats=0` takes
    no times.

    Example:
        >>> whole = hp.measure(model, batch=2, length=16, repeats=0)
        >>> whole.parameters.total == sum(p.numel() for p in model.parameters())
        True
    """
    model = unwrapped(model)
    heads = find_heads(model, example)
    inputs = to_model(model, example if example is not None else sized_example(model, batch, length))
    rows = next((len(value) for value in inputs.values() if hasattr(value, "__len__")), batch)
    timing = _timing(model, against, inputs, rows, repeats, warmup) if repeats else None
    with same_attributes(model):
        held = peak_memory(lambda: run(model, inputs, keep_state=False), next(model.parameters()).device)
    return Measurement(
        heads=len(heads),
        parameters=count_parameters(model, heads),
        macs=count_macs(model, heads, inputs),
        batch=rows,
        length=inputs["input_ids"].shape[1] if "input_ids" in inputs else None,
        timing=timing,
        peak_memory=held,
        cache_bytes_per_token=cache_bytes_per_token(model, heads),
    )


# What configs call the number of positions.
LENGTH_LIMITS = ("max_position_embeddings", "n_positions", "max_target_positions", "max_seq_len")


def sized_example(model: nn.Module, batch: int, length: int) -> dict[str, Any]:
    """An example of the given shape; the length is cut to what the model can take."""
    return example_inputs(model, batch=batch, length=max(2, min([length, *_longest(model)])))


def _longest(model: nn.Module) -> list[int]:
    """How many tokens the model, or its part for text, says that it can take."""
    config = getattr(model, "config", None)
    parts = [config, *(getattr(config, name, None) for name in getattr(config, "sub_configs", ()))]
    texts = [part for part in parts if part is config or hasattr(part, "vocab_size")]
    limits = [getattr(part, name, None) for part in texts for name in LENGTH_LIMITS]
    tables = [m for m in model.modules() if isinstance(m, nn.Embedding) and m.padding_idx is not None]
    return [
        # RoBERTa and its kin count positions from the padding's number on
        limit - max(((m.padding_idx or 0) + 1 for m in tables if m.num_embeddings == limit), default=0)
        for limit in limits
        if isinstance(limit, int) and limit > 1
    ]


def waiting_for(device: torch.device) -> Callable[[], None] | None:
    """What ends when a device has done all that it was asked for; None where a call ends only then."""
    return {"cuda": torch.cuda.synchronize, "mps": torch.mps.synchronize}.get(device.type)


def interleaved(
    tasks: Sequence[Callable[[], object]], repeats: int, warmup: int = 2, after: Callable[[], None] | None = None
) -> list[list[float]]:
    """Seconds of each task in each round. All tasks run in every round, the order turning from round to round."""
    for task in tasks:
        for _ in range(warmup):
            task()
    times: list[list[float]] = [[] for _ in tasks]
    for round_number in range(repeats):
        for step in range(len(tasks)):
            index = (round_number + step) % len(tasks)
            start = time.perf_counter()
            tasks[index]()
            if after is not None:
                after()
            times[index].append(time.perf_counter() - start)
    return times


def ratio(first: Sequence[float], second: Sequence[float]) -> tuple[float, float, float]:
    """Median and quartiles of the round-by-round ratios."""
    ratios = sorted(a / b for a, b in zip(first, second, strict=True))
    if len(ratios) < 2:
        return ratios[0], ratios[0], ratios[0]
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return middle, low, high


def _timing(model: nn.Module, against: nn.Module | None, inputs: Batch, rows: int, repeats: int, warmup: int) -> Timing:
    after = waiting_for(next(model.parameters()).device)
    models = [model, model, *([unwrapped(against)] if against is not None else [])]
    tasks = [lambda m=m: run(m, inputs, keep_state=False) for m in models]
    with torch.inference_mode(), same_attributes(model), same_attributes(models[-1]):
        times = interleaved(tasks, repeats, warmup, after)
    control, control_low, control_high = ratio(times[0], times[1])
    speedup = ratio(times[2], times[0]) if against is not None else None
    low, median, high = statistics.quantiles(times[0], n=4, method="inclusive") if repeats > 1 else (times[0][0],) * 3
    return Timing(
        median=median,
        low=low,
        high=high,
        repeats=repeats,
        examples_per_second=rows / median,
        control=control,
        control_spread=(control_low, control_high),
        speedup=speedup[0] if speedup else None,
        speedup_spread=(speedup[1], speedup[2]) if speedup else None,
    )


def peak_memory(task: Callable[[], object], device: torch.device) -> int:
    """Bytes that a task holds at most beyond what was held before."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        with torch.no_grad():
            task()
        torch.cuda.synchronize(device)
        return int(torch.cuda.max_memory_allocated(device) - before)
    with torch.no_grad():
        return live_bytes(task)


def live_bytes(task: Callable[[], object]) -> int:
    """Bytes of the tensors that operations make and that live at once, at most; with gradients or without."""
    with _LiveBytes() as live:
        task()
    most: int = live.most
    return most


class _LiveBytes(TorchDispatchMode):
    """Adds up the storages that operations make, until the last tensor on each is gone."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.held = self.most = 0
        self.tensors: dict[int, int] = {}  # storage -> tensors alive on it

    def __torch_dispatch__(self, func: Function, types: object, args: Args = (), kwargs: Kwargs | None = None) -> Any:
        outside = {x.untyped_storage()._cdata for x in tree_leaves((args, kwargs or {})) if isinstance(x, Tensor)}
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self._note(tensor, outside)
        return result

    def _note(self, tensor: Tensor, outside: set[int]) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key not in self.tensors:
            if key in outside:
                return  # a view of a weight or an input, which were there before
            self.held += size
            self.most = max(self.most, self.held)
        self.tensors[key] = self.tensors.get(key, 0) + 1
        weakref.finalize(tensor, self._gone, key, size)

    def _gone(self, key: int, size: int) -> None:
        self.tensors[key] -= 1
        if not self.tensors[key]:
            del self.tensors[key]
            self.held -= size


def cache_bytes_per_token(model: nn.Module, heads: HeadMap) -> int | None:
    """What one more token adds to the key-value cache of one sequence, measured; None for models without one."""
    if "decoder" not in heads.components:
        return None
    sizes = []
    for length in (8, 12):  # two lengths, so that what does not grow (cross-attention) cancels out
        inputs = to_model(model, example_inputs(model, batch=1, length=length))
        try:
            with torch.no_grad():
                answer = run(model, {**inputs, "use_cache": True})
        except HeadpruneError:
            return None
        cache = getattr(answer, "past_key_values", None)
        cache = getattr(cache, "self_attention_cache", cache)
        layers = getattr(cache, "layers", None)
        if not layers:
            return None
        held = [(layer.keys, layer.values) for layer in layers if getattr(layer, "keys", None) is not None]
        sizes.append(int(sum(k.numel() * k.element_size() + v.numel() * v.element_size() for k, v in held)))
    return (sizes[1] - sizes[0]) // 4
