"""How many times as fast a model is, in processor time of one thread: other work on the machine does not count."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from headprune.cost.measurement import ratio, sized_example

BATCH, LENGTH = 8, 64  # of a forward pass whose MACs and time are told
REPEATS, WARMUP = 15, 2


def times_of(small: nn.Module, whole: nn.Module) -> dict[str, Any]:
    """The speed-up over the whole model in PyTorch, and that model against itself (the A/A control): medians and
    quartiles over rounds in which each of the three runs once."""
    inputs = {name: value for name, value in sized_example(whole, BATCH, LENGTH).items() if name != "labels"}
    with torch.inference_mode():
        rounds = [[_seconds(lambda m=m: m(**inputs)) for m in (whole, small, whole)] for _ in range(WARMUP + REPEATS)]
    first, smaller, second = zip(*rounds[WARMUP:], strict=True)
    (middle, low, high), (control, *spread) = ratio(first, smaller), ratio(first, second)
    return {"speedup": middle, "speedup_spread": [low, high], "control": control, "control_spread": spread}


def _seconds(task: Callable[[], object]) -> float:
    began = time.process_time()
    task()
    return time.process_time() - began
