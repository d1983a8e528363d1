"""What `prune` can be asked: which heads go, how the rest is repaired, and where the smaller model is put."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from headprune.errors import MaskError
from headprune.jobs.options.base import (
    Device,
    Force,
    Memory,
    Model,
    Option,
    Parts,
    RemoteCode,
    Seed,
    Stream,
    TaskOptions,
)
from headprune.registry import known_name

COUNTS = ("prune", "keep", "pattern")
BUDGETS = ("max_drop", "params", "macs", "speedup")  # with an option of their own; any other by --budget
AMOUNTS = (*COUNTS, *BUDGETS, "budget")


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Which heads go: by file, name, score, pattern, budget or chance."""

    parts: Parts = "heads"
    mask: Annotated[Path | None, Option("A mask file: the heads that stay.", is_read=True)] = None
    heads: Annotated[str | None, Option("Heads or sites that go, by name: encoder.3:7,encoder.5 …")] = None
    scores: Annotated[Path | None, Option("A scores file: the lowest heads go first.", is_read=True)] = None
    method: Annotated[
        str | None, Option("Score heads here, on --task, by this method; best: what measured best on average.")
    ] = None
    prune: Annotated[str | None, Option("How many heads go: a share (50%) or a count (72).")] = None
    keep: Annotated[str | None, Option("How many heads stay: a share (50%) or a count (72).")] = None
    pattern: Annotated[str | None, Option("A pattern: 888444, 14/31/30, top:3, odd, one, …")] = None
    max_drop: Annotated[float | None, Option("As many heads as go without losing more points than this on --task.")] = (
        None
    )
    params: Annotated[str | None, Option("Parameters that the model may have left: a share (80%) or a count.")] = None
    macs: Annotated[
        str | None, Option("MACs that a forward pass may take: a share (80%) or a count; see --length.")
    ] = None
    speedup: Annotated[
        float | None, Option("How many times as fast a forward pass becomes, measured on this machine.")
    ] = None
    budget: Annotated[str | None, Option("Any budget that is registered, as NAME=AMOUNT: macs=80%, yours=3, …")] = None
    batch: Annotated[int, Option("--macs, --speedup: examples a forward pass.")] = 1
    length: Annotated[int, Option("--macs, --speedup: tokens an example.")] = 128
    uniform: Annotated[bool, Option("Every site keeps the same number, as export --format plain needs.")] = False
    per: Annotated[str, Option("What a share is taken of: model, component or site.")] = "model"
    at_least: Annotated[int, Option("Heads that every site keeps.")] = 0
    unit: Annotated[str, Option("What goes together: head, group (KV group) or query (one head a group).")] = "head"
    gqa: Annotated[str | None, Option("How grouped-query attention may shrink: group, query or expand.")] = None
    recover: Annotated[
        str | None, Option("Repair without training: least-squares, bias, rescale; or none, with --method best.")
    ] = None
    calibration: Annotated[int, Option("Training examples of --task to score on and to repair with; 0: all.")] = 512

    @property
    def asked_budget(self) -> tuple[str, str] | None:
        """A budget's name and amount, as typed."""
        for name in BUDGETS:
            if (value := getattr(self, name)) is not None:
                return name, str(value)
        if self.budget is None:
            return None
        name, equals, value = self.budget.partition("=")
        if not equals or not value.strip():
            raise MaskError(f"--budget is '{self.budget}'; expected a name and an amount, like macs=80%.")
        return name.strip().replace("-", "_"), value.strip()

    @property
    def is_ordered(self) -> bool:
        """Whether something says what heads are worth."""
        return self.scores is not None or self.method is not None

    @property
    def is_explicit(self) -> bool:
        """Whether heads are named."""
        return self.mask is not None or self.heads is not None

    @property
    def by_chance(self) -> bool:
        """Whether nothing but the seed says which heads go."""
        return not self.is_explicit and not self.is_ordered and self.pattern is None

    def check(self) -> None:
        """One way of choosing, and no more; every option known, and one that has an effect."""
        known_name("--unit", self.unit, ("head", "group", "query"))
        known_name("--per", self.per, ("model", "component", "site"))
        for name, least in (("at_least", 0), ("calibration", 0), ("batch", 1), ("length", 1), ("max_drop", 0)):
            value = getattr(self, name)
            if value is not None and not value >= least:
                raise MaskError(f"--{name.replace('_', '-')} is {value}; expected {least} or more.")
        self._check_ways()
        self._check_effects()

    def _check_ways(self) -> None:
        amounts = [name for name in AMOUNTS if getattr(self, name) is not None]
        if self.is_explicit:
            if amounts or self.is_ordered or (self.mask is not None and self.heads is not None):
                raise MaskError("--mask and --heads say it all: give one of them alone.")
        elif len(amounts) > 1:
            first, second = (f"--{name.replace('_', '-')}" for name in amounts[:2])
            raise MaskError(f"You gave two amounts, {first} and {second}: which one? Give one of them.")
        elif not amounts:
            raise MaskError(
                "Say which heads go with one of --mask, --heads, --prune, --keep, --pattern, --max-drop, --params, "
                "--macs, --speedup or --budget (with --method or --scores the lowest go, without them a random choice)."
            )
        budget = self.asked_budget
        if self.parts == "both" and (budget is None or budget[0] == "max_drop") and not self.is_explicit:
            raise MaskError(
                "--parts both: a head and a neuron are not worth the same, so a share of both means nothing. Say what "
                "the model may cost with --params, --macs or --speedup."
            )
        if self.scores is not None and self.method is not None:
            raise MaskError("--scores and --method both say in which order heads go: give one of them.")
        shared = self.prune is not None or self.keep is not None or (budget is not None and budget[0] != "max_drop")
        if self.uniform and not (shared and self.is_ordered):
            raise MaskError("--uniform needs --method or --scores, and --prune, --keep, --params, --macs or --speedup.")
        if self.uniform and self.parts == "both":
            raise MaskError("--uniform: heads and neurons cannot be equally many. Prune one of the two at a time.")
        if budget is not None and not self.is_ordered:
            raise MaskError(f"--{budget[0].replace('_', '-')} needs an order to prune in: give --method or --scores.")

    def _check_effects(self) -> None:
        """Options that change nothing here were meant otherwise."""
        way = next((name for name in (*AMOUNTS, "mask", "heads") if getattr(self, name) is not None), "prune")
        idle = ("per",) if way in (*BUDGETS, "budget") else ("per", "at_least", "unit")
        for name in idle if way not in ("prune", "keep") else ():
            if getattr(self, name) != getattr(type(self), name):
                raise MaskError(
                    f"--{name.replace('_', '-')} has no effect with --{way.replace('_', '-')}: leave one of them out."
                )


@dataclass(frozen=True, kw_only=True)
class PruneOptions:
    model: Model
    data: TaskOptions = field(default_factory=lambda: TaskOptions(task=None))
    choice: Choice = Choice()
    out: Annotated[Path | None, Option("Folder for the smaller model.")] = None
    empty_site: Annotated[str, Option("A site without heads: bias (keeps its output bias) or skip (adds nothing).")] = (
        "bias"
    )
    force: Force = False
    seed: Seed = 0
    dry_run: Annotated[bool, Option("Only tell what would be removed.")] = False
    device: Device = "cpu"
    trust_remote_code: RemoteCode = False
    stream: Stream = False
    memory: Memory = None

    def check(self) -> None:
        """What can be told without a model or data."""
        if self.out is None and not self.dry_run:
            raise MaskError("Say where the smaller model goes with --out, or ask for --dry-run.")
        self.choice.check()
