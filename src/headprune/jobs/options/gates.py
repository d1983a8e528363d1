"""What `gates` can be asked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from headprune.jobs.options.base import Device, Force, Model, Option, Picture, Seed, TaskOptions
from headprune.jobs.options.training import Tests, TrainingOptions


@dataclass(frozen=True, kw_only=True)
class GatesOptions:
    model: Model
    out: Annotated[Path, Option("Folder for the pruned models, gates.json and pictures.")]
    weights: Annotated[
        list[float] | None, Option("Weight of the L0 penalty; give it again for a sweep.", flags=("--lambda",))
    ] = None
    keep: Annotated[list[str] | None, Option("Heads to keep instead, a share (50%) or a count (36); repeatable.")] = (
        None
    )
    gate: Annotated[str, Option("hard-concrete (Voita), binary-concrete (Shim) or exact-k.")] = "hard-concrete"
    components: Annotated[str | None, Option("Gate only these: encoder, decoder, cross.")] = None
    unit: Annotated[Literal["auto", "head", "group"], Option("One gate per head, per KV group (group), or auto.")] = (
        "auto"
    )
    train: Annotated[str, Option("Which weights train besides: all, gates (none), encoder, or a pattern of names.")] = (
        "all"
    )
    rule: Annotated[
        Literal["paper", "clip"], Option("Values at the end: paper (0 or 1) or clip (fractions, folded in).")
    ] = "paper"
    temperature: Annotated[float | None, Option("Of the gates; default the papers'.")] = None
    init: Annotated[
        str | None, Option("Initial log_alpha: a number (default 2, which is 88 % open), or glorot as in Voita et al.")
    ] = None
    scaling: Annotated[
        bool, Option("binary-concrete: scale open heads by heads / open heads.", flags=("--scaling/--no-scaling",))
    ] = True
    gate_lr: Annotated[float, Option("Peak learning rate of the gates.")] = 0.05
    gate_lr_scale: Annotated[
        float | None, Option("The same as a multiple of --lr: 10 in Shim et al., 1 in Voita et al.")
    ] = None
    warmup: Annotated[float, Option("Share of the steps over which the penalty rises.")] = 0.2
    freeze_after: Annotated[
        float | None, Option("Share of the steps after which gates are frozen; default 0.7 with --keep.")
    ] = None
    over: Annotated[
        Literal["sum", "site-mean"], Option("Penalty: sum over heads, or site-mean as in Voita et al.'s code.")
    ] = "sum"
    from_scratch: Annotated[bool, Option("Start from random weights (a control of Voita et al.).")] = False
    test: Tests = None
    training: TrainingOptions = TrainingOptions(epochs=2.0, lr=2e-5)
    data: TaskOptions = TaskOptions()
    force: Force = False
    seed: Seed = 42
    picture: Picture = "html"
    device: Device = "cpu"
