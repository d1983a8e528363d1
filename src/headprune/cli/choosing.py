"""Which heads `headprune prune` removes: by file, name, score, pattern, budget or chance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headprune.cli.options import Parts
from headprune.errors import MaskError
from headprune.heads.stored import read_mask, read_scores
from headprune.jobs.options.base import amount

if TYPE_CHECKING:
    from headprune.heads import HeadMap, HeadMask, HeadScores
    from headprune.recovery.calibration import Calibration


BUDGETS = ("max_drop", "params", "macs", "speedup")
UNITS, PARTS = ("head", "group", "query"), ("model", "component", "site")
AMOUNTS = ("prune", "keep", "pattern", *BUDGETS)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The options as typed. Every field is an option of `headprune prune`."""

    parts: Parts = "heads"
    mask: Annotated[Path | None, typer.Option(help="A mask file: the heads that stay.")] = None
    heads: Annotated[str | None, typer.Option(help="Heads or sites that go, by name: encoder.3:7,encoder.5 …")] = None
    scores: Annotated[Path | None, typer.Option(help="A scores file: the lowest heads go first.")] = None
    method: Annotated[
        str | None,
        typer.Option(help="Score heads here, on --task, by this method; best: what measured best on average."),
    ] = None
    prune: Annotated[str | None, typer.Option(help="How many heads go: a share (50%) or a count (72).")] = None
    keep: Annotated[str | None, typer.Option(help="How many heads stay: a share (50%) or a count (72).")] = None
    pattern: Annotated[str | None, typer.Option(help="A pattern: 888444, 14/31/30, top:3, odd, one, …")] = None
    max_drop: Annotated[
        float | None, typer.Option(help="As many heads as go without losing more points than this on --task.")
    ] = None
    params: Annotated[
        str | None, typer.Option(help="Parameters that the model may have left: a share (80%) or a count.")
    ] = None
    macs: Annotated[
        str | None, typer.Option(help="MACs that a forward pass may take: a share (80%) or a count; see --length.")
    ] = None
    speedup: Annotated[
        float | None, typer.Option(help="How many times as fast a forward pass becomes, measured on this machine.")
    ] = None
    batch: Annotated[int, typer.Option(help="--macs, --speedup: examples a forward pass.")] = 1
    length: Annotated[int, typer.Option(help="--macs, --speedup: tokens an example.")] = 128
    uniform: Annotated[
        bool, typer.Option("--uniform", help="Every site keeps the same number, as export --format plain needs.")
    ] = False
    per: Annotated[str, typer.Option(help="What a share is taken of: model, component or site.")] = "model"
    at_least: Annotated[int, typer.Option(help="Heads that every site keeps.")] = 0
    unit: Annotated[
        str, typer.Option(help="What goes together: head, group (KV group) or query (one head a group).")
    ] = "head"
    gqa: Annotated[str | None, typer.Option(help="How grouped-query attention may shrink: group, query or expand.")] = (
        None
    )
    recover: Annotated[
        str | None,
        typer.Option(help="Repair without training: least-squares, bias, rescale; or none, with --method best."),
    ] = None
    calibration: Annotated[
        int, typer.Option(help="Training examples of --task to score on and to repair with; 0: all.")
    ] = 512

    @property
    def repair(self) -> str | None:
        """The repair that is meant: the best order comes with one."""
        from headprune.recovery.greedy_search import named_repair

        return named_repair(self.method, self.recover)

    @property
    def has_shape(self) -> bool:
        """Whether --batch and --length are meant."""
        return self.macs is not None or self.speedup is not None

    def check(self) -> None:
        """One way of choosing, and no more; every option known, and one that has an effect."""
        self._check_values()
        self._check_ways()
        self._check_effects()

    def _check_values(self) -> None:
        from headprune.recovery import recoveries
        from headprune.registry import known_name

        known_name("--unit", self.unit, UNITS)
        known_name("--per", self.per, PARTS)
        if self.repair is not None:
            recoveries[self.repair]
        for name, least in (("at_least", 0), ("calibration", 0), ("batch", 1), ("length", 1), ("max_drop", 0)):
            value = getattr(self, name)
            if value is not None and not value >= least:
                raise MaskError(f"--{name.replace('_', '-')} is {value}; expected {least} or more.")

    def _check_effects(self) -> None:
        """Options that change nothing here were meant otherwise."""
        way = next((name for name in (*AMOUNTS, "mask", "heads") if getattr(self, name) is not None), "prune")
        idle = {
            "mask": ("per", "at_least", "unit"), "heads": ("per", "at_least", "unit"),
            "pattern": ("per", "at_least", "unit"), **dict.fromkeys(BUDGETS, ("per",)),
        }.get(way, ())  # fmt: skip
        for name in idle:
            if getattr(self, name) != getattr(type(self), name):
                raise MaskError(
                    f"--{name.replace('_', '-')} has no effect with --{way.replace('_', '-')}: leave one of them out."
                )

    def _check_ways(self) -> None:
        amounts = [name for name in AMOUNTS if getattr(self, name) is not None]
        if self.mask is not None or self.heads is not None:
            ordered = self.scores is not None or self.method is not None
            if amounts or ordered or (self.mask is not None and self.heads is not None):
                raise MaskError("--mask and --heads say it all: give one of them alone.")
        elif len(amounts) != 1:
            raise MaskError(
                "Say which heads go with one of --mask, --heads, --prune, --keep, --pattern, --max-drop, --params, "
                "--macs or --speedup (with --method or --scores the lowest go, without them a random choice)."
            )
        currency = ("params", "macs", "speedup")
        if self.parts == "both" and not any(getattr(self, name) is not None for name in (*currency, "mask", "heads")):
            raise MaskError(
                "--parts both: a head and a neuron are not worth the same, so a share of both means nothing. Say what "
                "the model may cost with --params, --macs or --speedup."
            )
        if self.scores is not None and self.method is not None:
            raise MaskError("--scores and --method both say in which order heads go: give one of them.")
        shared = [name for name in ("prune", "keep", "params", "macs", "speedup") if getattr(self, name) is not None]
        if self.uniform and not (shared and (self.scores is not None or self.method is not None)):
            raise MaskError("--uniform needs --method or --scores, and --prune, --keep, --params, --macs or --speedup.")
        if self.uniform and self.parts == "both":
            raise MaskError("--uniform: heads and neurons cannot be equally many. Prune one of the two at a time.")
        needing = [name for name in BUDGETS if getattr(self, name) is not None]
        if needing and self.scores is None and self.method is None:
            option = needing[0].replace("_", "-")
            raise MaskError(f"--{option} needs an order to prune in: give --method or --scores.")

    @property
    def meant(self) -> str:
        """The parts of the model that are spoken of: by --parts, or by the names in --mask and --heads."""
        from headprune.heads.ids import NEURONS

        if self.parts != "heads":
            return "both" if self.mask is not None or self.heads is not None else self.parts
        names_neurons = f"{NEURONS}." in (self.heads or "")
        if self.mask is not None:
            names_neurons = read_mask(self.mask).has_neurons
        return "both" if names_neurons else "heads"

    @property
    def by_chance(self) -> bool:
        """Whether nothing but the seed says which heads go."""
        return all(value is None for value in (self.mask, self.heads, self.scores, self.method, self.pattern))

    @property
    def needs_data(self) -> bool:
        return any(value is not None for value in (self.method, self.repair, self.max_drop))


def choose(
    choice: Choice,
    model: Any,
    found: HeadMap,
    seed: int,
    calibration: Calibration | None = None,
    budget: Callable[[HeadScores], HeadMask] | None = None,
) -> tuple[HeadMask, str]:
    """The mask, and in words how it was chosen. `budget` finds the furthest mask within --max-drop."""
    from headprune.heads import HeadMask

    if choice.mask is not None:
        chosen = read_mask(choice.mask).filled(found).checked_for(found)
        return chosen, f"the mask file {choice.mask.name}"
    if choice.heads is not None:
        names = [name.strip() for name in choice.heads.split(",") if name.strip()]
        return HeadMask.full(found).without(*names), "name"
    how: dict[str, Any] = {"unit": choice.unit}
    how |= {name: amount(text) for name in ("prune", "keep") if (text := getattr(choice, name)) is not None}
    share = f"prune {choice.prune}" if choice.prune is not None else f"keep {choice.keep}"
    plain = choice.per == "model" and not choice.uniform
    if choice.method is not None and calibration is not None and len(how) > 1 and plain:
        chosen = calibration.search(choice.method, choice.repair, at_least=choice.at_least, **how)
        return chosen, f"{share} by {choice.method} on {calibration.name}, unit {choice.unit}"
    scores = _scores(choice, calibration)
    by = f"{scores.method} on {scores.data or 'unnamed data'}" if scores is not None else f"chance, seed {seed}"
    if choice.pattern is not None:
        from headprune.heads.patterns import pattern

        return pattern(found, choice.pattern, scores=scores, seed=seed), f"pattern {choice.pattern} by {by}"
    if choice.max_drop is not None and scores is not None and budget is not None:
        return budget(scores), f"{by}, as far as {choice.max_drop} points of drop allow"
    if scores is not None and (costly := _within_costs(choice, model, found, scores)) is not None:
        return costly[0], f"{by}, {costly[1]}"
    if scores is None and plain and not choice.at_least:
        return HeadMask.random(found, seed=seed, **how), f"{share} by {by}, unit {choice.unit}"
    from headprune.heads.ranking import select

    if scores is None:
        from headprune.scoring import score

        scores = score(model, method="random", heads=found, seed=seed)
    if choice.uniform and len({len(site.groups) for site in found if site.num_heads}) > 1:
        raise MaskError("--uniform: the sites do not have equally many heads to begin with.")
    per = "site" if choice.uniform else choice.per
    chosen = select(scores, found, per=per, at_least=choice.at_least, **how)  # type: ignore[arg-type]
    return chosen, f"{share} by {by}, unit {choice.unit}"


def _scores(choice: Choice, calibration: Calibration | None) -> HeadScores | None:
    if choice.scores is not None:
        return read_scores(choice.scores)
    if choice.method is None or calibration is None:
        return None
    return calibration.scores(choice.method, choice.unit)


def _within_costs(choice: Choice, model: Any, found: HeadMap, scores: HeadScores) -> tuple[HeadMask, str] | None:
    """--params, --macs and --speedup: what heads cost here, and the mask that loses least within the budget."""
    from headprune.budgets import Selection
    from headprune.budgets.select import find_mask

    ways: Any = {name: getattr(choice, name) for name in ("unit", "at_least", "uniform", "gqa", "batch", "length")}
    selection = Selection(scores=scores, heads=found, model=model, **ways)
    for name in ("params", "macs", "speedup"):
        if (value := getattr(choice, name)) is not None:
            hit = find_mask(name, amount(value) if isinstance(value, str) else value, selection)
            return hit.mask, hit.message or f"--{name} {value}"
    return None
