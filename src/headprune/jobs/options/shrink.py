"""What `shrink` can be asked: how small, by which data, and where the smaller model is put."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from headprune.errors import DataError, MaskError
from headprune.jobs.options.base import (
    Device,
    Force,
    Memory,
    Model,
    Option,
    RemoteCode,
    Seed,
    Stream,
    TaskOptions,
    amount,
)
from headprune.registry import known_name

BUDGETS = ("macs", "params", "speedup", "max_drop", "prune")
NUMBERS = ("speedup", "max_drop")  # just a number; the others are shares or counts


@dataclass(frozen=True, kw_only=True)
class ShrinkOptions:
    model: Model
    data: TaskOptions = field(default_factory=lambda: TaskOptions(task=None))
    corpus: Annotated[
        list[Path] | None,
        Option(
            "Plain text instead of a task, without any labels: a .txt, a .jsonl with text or chat messages, or a "
            "folder of them; repeatable.",
            is_read=True,
        ),
    ] = None
    macs: Annotated[
        str | None, Option("MACs left of the whole model: a share (30%), a count, or several (60%,40%,20%).")
    ] = None
    params: Annotated[str | None, Option("Parameters left, embeddings included: a share, a count, or several.")] = None
    speedup: Annotated[str | None, Option("How many times as fast a forward pass becomes, measured here.")] = None
    max_drop: Annotated[
        str | None, Option("As small as goes without losing more points of the task's metric, or of agreement.")
    ] = None
    prune: Annotated[str | None, Option("Heads that go: a share (50%, or 0.5) or a count.")] = None
    parts: Annotated[str, Option("What may go: auto (both for a cost), heads, neurons or both.")] = "auto"
    method: Annotated[str, Option("How heads and neurons are scored; best: what measured best on average.")] = "best"
    recover: Annotated[
        str | None, Option("Repair without training: least-squares, stream, bias, rescale or none. Default: best's.")
    ] = None
    shifts: Annotated[
        float | None,
        Option("Passes over the calibration data to shift levels between sites; 0: none. Default: best's."),
    ] = None
    ridge: Annotated[
        float | None,
        Option("How strongly the repair stays near the original. Default: chosen for each site on held-out data."),
    ] = None
    gqa: Annotated[str | None, Option("How grouped-query attention may shrink: group, query or expand.")] = None
    at_least: Annotated[int, Option("Heads (and neurons) that every site keeps.", least=0)] = 0
    batch: Annotated[int, Option("MACs and times are of so many examples a forward pass", least=1)] = 1
    length: Annotated[int, Option("and so many tokens an example.", least=2)] = 128
    calibration: Annotated[int, Option("Examples to choose and repair by, a quarter held out.", least=32)] = 512
    epochs: Annotated[
        float, Option("Then train so long on the task, with the whole model as teacher; the best state is kept.")
    ] = 0.0
    lr: Annotated[float, Option("Peak learning rate of that training.")] = 1e-4
    out: Annotated[Path | None, Option("Folder for the smaller model; for several budgets, a folder of them.")] = None
    export: Annotated[
        str | None,
        Option("--out then is the model in a format of `headprune export`: gguf:q8_0, gguf, onnx:int8, openvino, …"),
    ] = None
    keep: Annotated[Path | None, Option("With --export: the checkpoint in this folder, too.")] = None
    dry_run: Annotated[bool, Option("Only tell what it would cost.")] = False
    force: Force = False
    seed: Seed = 0
    device: Device = "cpu"
    trust_remote_code: RemoteCode = False
    stream: Stream = False
    memory: Memory = None

    def check(self) -> None:
        """What can be told without a model or data."""
        if (self.out is None) == (not self.dry_run):
            raise MaskError("Say where the smaller model goes with --out, or ask for --dry-run.")
        if (self.data.task is None) == (self.corpus is None):
            raise DataError("Say what the model is for: --task (with --data-dir or --dataset), or --corpus FILE.")
        if not (0 <= self.epochs < math.inf and 0 < self.lr < math.inf):
            raise DataError(f"Found --epochs {self.epochs} and --lr {self.lr}; expected 0 or more, and more than 0.")
        if self.epochs and self.corpus is not None:
            raise DataError(
                "--epochs trains on the examples of a task: give --task (causal-lm for running text), not --corpus."
            )
        if self.keep is not None and self.export is None:
            raise DataError("--keep is for --export: without it, --out is the checkpoint.")
        if self.export is not None and (self.dry_run or len(self.amounts()[1]) > 1):
            raise DataError("--export writes one model: give one budget, and no --dry-run.")
        known_name("--parts", self.parts, ("auto", "heads", "neurons", "both"))
        self.amounts()

    def amounts(self) -> tuple[str, dict[str, float | int]]:
        """The budget and how much of it: each as it was written, and as a number."""
        given = [name for name in BUDGETS if getattr(self, name) is not None]
        if len(given) != 1:
            found = f"You gave two: --{given[0]} and --{given[1]}" if given else "No budget was given"
            raise MaskError(
                f"{found.replace('_', '-')}. Expected one of --macs, --params, --speedup, --max-drop, --prune."
            )
        (name,) = given
        return name, {text.strip(): _number(name, text.strip()) for text in getattr(self, name).split(",")}


def _number(name: str, text: str) -> float | int:
    flag = f"--{name.replace('_', '-')}"
    try:
        number = float(text)
    except ValueError:
        return amount(text)
    if not 0 <= number < math.inf:
        raise MaskError(f"{flag} is {text}; expected 0 or more.")
    if name in NUMBERS:
        return number
    if "." in text and 0 < number < 1:
        return number  # 0.5 is 50%
    if number == int(number) and "." not in text:
        return int(number)
    raise MaskError(f"{flag} is {text}; expected a share (30% or 0.3) or a count.")
