"""`prune`: choose heads, repair what is left, remove them for real, and save the smaller model."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, cast

from torch import nn

from headprune.budgets import Budget, Selection, budgets, find_mask, select
from headprune.checkpoint.load_model import load_model
from headprune.checkpoint.out_folder import RESULT, OutFolder, check_companions, check_room, new_model_folder, open_out
from headprune.cost.measurement import sized_example
from headprune.errors import MaskError
from headprune.files import write_text
from headprune.heads import HeadMap, HeadMask, HeadScores
from headprune.heads.headmap import NEURONS
from headprune.heads.mask import Unit, head_units, refuse_nothing
from headprune.heads.patterns import pattern
from headprune.heads.picture import head_text
from headprune.heads.scores import Per
from headprune.heads.stored import read_mask, read_scores
from headprune.jobs.drop_report import DropReport, HeldOut
from headprune.jobs.job import SILENT, Progress
from headprune.jobs.options.base import amount
from headprune.jobs.options.prune import BUDGETS, Choice, PruneOptions
from headprune.jobs.streamed import StreamedModel, prune_on_disk
from headprune.masking import EmptySite
from headprune.memory import memory_limit
from headprune.recovery import recoveries
from headprune.recovery.greedy_search import Calibration, named_repair
from headprune.scoring import score, scorers
from headprune.structure.find import find_parts
from headprune.surgery.edits import Gqa
from headprune.surgery.plan import Plan, plan
from headprune.surgery.prune import prune_with_report
from headprune.tasks.data import match_padding_, open_task
from headprune.typed_json import from_plain, to_plain


@dataclass(frozen=True)
class SiteError:
    """The mean squared error of a site's output without and with its repair, and the mean square of that output."""

    before: float
    after: float
    size: float


@dataclass(frozen=True)
class RepairReport:
    """What a repair did."""

    method: str
    sites: dict[str, SiteError]
    error_left: float


@dataclass(frozen=True, kw_only=True)
class PruneResult:
    """What went and what is left; pairs are before and after."""

    removed: dict[str, list[int]]
    kept: dict[str, list[int]]
    original: dict[str, int]
    heads: tuple[int, int]
    kv_heads: tuple[int, int]
    neurons: tuple[int, int] | None = None
    parameters: tuple[int, int]
    macs: tuple[int, int]
    by: str
    difference: float | None = None  # of the pruned from the masked model; None where nothing was removed yet
    out: str | None = None
    frozen: list[str] | None = None  # parameters that no answer depends on any more
    budget: DropReport | None = None
    recovery: RepairReport | None = None
    version: ClassVar[int] = 1

    text: str = ""  # for people

    def to_dict(self) -> dict[str, Any]:
        plain: dict[str, Any] = to_plain(self)
        del plain["text"]
        return {
            name: value
            for name, value in plain.items()
            if value is not None or name not in ("neurons", "frozen", "budget", "recovery")
        }

    def message(self) -> str:
        return self.text


def prune(options: PruneOptions, progress: Progress = SILENT) -> PruneResult | StreamedModel:
    """Remove heads, check that the model answers as if they were masked, and save it."""
    options.check()
    if options.stream:
        return prune_on_disk(options, progress)
    with memory_limit(options.memory):
        return _prune(options, progress)


def _prune(options: PruneOptions, progress: Progress) -> PruneResult:
    choice, asked = options.choice, AskedBudget.of(options.choice)
    repair, empty_site = named_repair(choice.method, choice.recover), cast(EmptySite, options.empty_site)
    gqa = cast(Gqa | None, choice.gqa)
    if repair is not None:
        recoveries[repair]  # a hint for a wrong name, before anything is done
    out = None if options.dry_run else open_out("prune", options, holds_model=True)
    if out is not None and out.is_finished:
        told = f"'{out.path}' was made by this very command and is kept; --force makes it anew"
        return replace(from_plain(PruneResult, out.kept(RESULT)), text=told)
    if out is not None:
        check_companions(Path(options.model))
    with progress.steps(4) as step:
        step("loading the model")
        model = load_model(options.model, options.device, trust_remote_code=options.trust_remote_code)
        step("choosing heads")
        every, found = find_parts(model, _parts_meant(choice))
        calibration, held_out = _examples(options, model, found, repair, asked)
        chosen, by = _choose(options, Subject(model, found, calibration, held_out, repair, asked))
        mask = HeadMask.from_dict(every, chosen.to_dict())
        if repair is not None and empty_site == "skip":
            _refuse_a_repair_that_is_dropped(mask, every)
        step("counting")
        shape = sized_example(model, choice.batch, choice.length) if asked and asked.budget.has_shape else None
        planned = plan(model, mask, gqa=gqa, empty_site=empty_site, example=shape)
        result = from_plain(PruneResult, {**planned.to_dict(), "by": by})
        if held_out is not None and asked is not None:
            result = replace(result, budget=held_out.report(float(asked.text), chosen))
        if out is None:
            return replace(result, text=_dry_message(result, planned, options))
        check_room(
            out.path, planned.parameters_after.total * next(model.parameters()).element_size(), "the smaller model"
        )
        step("removing heads")
        if calibration is not None and repair is not None:
            done = replace(calibration, heads=every).repair(mask, repair).to_dict()
            result = replace(result, recovery=from_plain(RepairReport, done))
        outcome = prune_with_report(model, mask, gqa=gqa, empty_site=empty_site, about={"by": by})
        gap = outcome.difference.largest if outcome.difference else 0.0
        result = replace(result, difference=gap, out=str(out.path), frozen=list(outcome.frozen) or None)
        _save(model, Path(options.model), out, result)
    return replace(result, text=_message(result, planned, options))


@dataclass(frozen=True)
class AskedBudget:
    """A budget as asked for."""

    name: str
    text: str
    budget: Budget

    @classmethod
    def of(cls, choice: Choice) -> AskedBudget | None:
        typed = choice.asked_budget
        return None if typed is None else cls(*typed, budgets[typed[0]])

    @property
    def amount(self) -> float | int:
        if self.budget.takes == "amount":
            return amount(self.text)
        try:
            return float(self.text)
        except ValueError:
            raise MaskError(f"{self.name} is '{self.text}'; expected a number. {self.budget.about}") from None

    @property
    def told(self) -> str:
        """How it is noted where nothing was measured."""
        if self.budget.needs == "evaluate":
            return f"as far as {self.text} points of drop allow"
        return f"--{self.name} {self.text}" if self.name in BUDGETS else f"--budget {self.name}={self.text}"


@dataclass(frozen=True)
class Subject:
    """What is chosen from: a model, what of it may go, and the examples that say what it is worth."""

    model: nn.Module
    heads: HeadMap
    calibration: Calibration | None
    held_out: HeldOut | None
    repair: str | None
    asked: AskedBudget | None


def _parts_meant(choice: Choice) -> str:
    """The parts of the model that are spoken of: by --parts, or by the names in --mask and --heads."""
    if choice.parts != "heads":
        return "both" if choice.is_explicit else choice.parts
    names_neurons = f"{NEURONS}." in (choice.heads or "")
    if choice.mask is not None:
        names_neurons = read_mask(choice.mask).has_neurons
    return "both" if names_neurons else "heads"


def _examples(
    options: PruneOptions, model: nn.Module, heads: HeadMap, repair: str | None, asked: AskedBudget | None
) -> tuple[Calibration | None, HeldOut | None]:
    """What choosing and repairing need of a task: training examples, and the halves of dev for a budget of loss."""
    choice = options.choice
    evaluates = asked is not None and asked.budget.needs == "evaluate"
    reads_data = choice.method is not None and not (choice.method in scorers and scorers[choice.method].data_free)
    if not reads_data and repair is None and not evaluates:
        return None, None
    if options.data.task is None:
        raise MaskError("--method, --recover and --max-drop need --task: on what?")
    data = open_task(options.data, options.model)
    match_padding_(model, data.processor)
    calibration = Calibration(model, heads, [], "", options.seed)
    if choice.method is not None or repair is not None:
        rows = data.examples("train", choice.calibration, options.seed)
        told = f"{len(rows)} examples of {data.task.name}, train"
        calibration = Calibration(model, heads, data.batches(rows), told, options.seed)
    if not evaluates:
        return calibration, None
    return calibration, HeldOut(data, calibration, repair, cast(EmptySite, options.empty_site))


def _choose(options: PruneOptions, subject: Subject) -> tuple[HeadMask, str]:
    """The mask, and in words how it was chosen."""
    choice, heads, calibration = options.choice, subject.heads, subject.calibration
    if choice.mask is not None:
        return read_mask(choice.mask).filled(heads).checked_for(heads), f"the mask file {choice.mask.name}"
    if choice.heads is not None:
        names = [name.strip() for name in choice.heads.split(",") if name.strip()]
        return HeadMask.full(heads).without(*names), "name"
    unit, per = cast(Unit, choice.unit), cast(Per, choice.per)
    prune, keep = (None if text is None else amount(text) for text in (choice.prune, choice.keep))
    share = f"prune {choice.prune}" if choice.prune is not None else f"keep {choice.keep}"
    plain, counted = per == "model" and not choice.uniform, prune is not None or keep is not None
    if choice.method is not None and calibration is not None and counted and plain:
        mask = calibration.search(
            choice.method, subject.repair, prune=prune, keep=keep, unit=unit, at_least=choice.at_least
        )
        return mask, f"{share} by {choice.method} on {calibration.name}, unit {unit}"
    scores = _scores(options, subject)
    by = f"{scores.method} on {scores.data or 'unnamed data'}" if scores is not None else f"chance, seed {options.seed}"
    if choice.pattern is not None:
        mask = pattern(heads, choice.pattern, scores=scores, seed=options.seed)
        return mask, f"pattern {choice.pattern} by {by}"
    if subject.asked is not None and scores is not None:
        mask, told = _within(choice, subject, subject.asked, scores)
        return mask, f"{by}, {told}"
    by = f"{share} by {by}, unit {unit}"
    if scores is None and plain and not choice.at_least:
        mask = HeadMask.random(heads, prune=prune, keep=keep, seed=options.seed, unit=unit)
        if len(mask) == len(heads):
            refuse_nothing([len(head_units(heads, unit))], prune=prune, keep=keep)
        return mask, by
    if scores is None:
        scores = score(subject.model, method="random", heads=heads, seed=options.seed)
    return select(
        scores, heads, prune=prune, keep=keep, per=per, unit=unit, at_least=choice.at_least, uniform=choice.uniform
    ), by


def _scores(options: PruneOptions, subject: Subject) -> HeadScores | None:
    choice = options.choice
    if choice.scores is not None:
        return read_scores(choice.scores)
    if choice.method is None:
        return None
    if subject.calibration is None:  # a method that looks at no data
        scores = score(subject.model, method=choice.method, heads=subject.heads, seed=options.seed)
        return replace(scores, data="no data")
    return subject.calibration.scores(choice.method, choice.unit)


def _within(choice: Choice, subject: Subject, asked: AskedBudget, scores: HeadScores) -> tuple[HeadMask, str]:
    """The mask that loses least within a budget, and what was measured or asked for."""
    selection = Selection(
        scores=scores, heads=subject.heads, model=subject.model, unit=cast(Unit, choice.unit),
        at_least=choice.at_least, uniform=choice.uniform, gqa=cast(Gqa | None, choice.gqa), batch=choice.batch,
        length=choice.length,
    )  # fmt: skip
    if choice.method is not None and subject.calibration is not None and asked.budget.needs == "model":
        shifter = subject.calibration.shifter(
            choice.method, scores, recover=subject.repair, unit=selection.unit, view=selection.view,
            at_least=choice.at_least,
        )  # fmt: skip
        selection = replace(selection, refine=None if shifter is None else shifter.refined)
    value = asked.amount
    if subject.held_out is not None:
        selection = replace(selection, evaluate=subject.held_out.worth)
        value = subject.held_out.drop(value)
    found = find_mask(asked.name, value, selection)
    return found.mask, found.message or asked.told


def _refuse_a_repair_that_is_dropped(mask: HeadMask, heads: HeadMap) -> None:
    emptied = [site.id for site in heads if site.num_heads and not mask.kept(site.id)]
    if emptied:
        raise MaskError(
            f"{emptied[0]} loses all its heads: --empty-site skip would drop the bias that --recover repairs. Use "
            "--empty-site bias, or --at-least 1."
        )


def _save(model: nn.Module, source: Path, out: OutFolder, result: PruneResult) -> None:
    """The smaller model with all that a model folder holds, and what was done to it."""
    with new_model_folder(out.path, source) as new:
        model.save_pretrained(new)  # type: ignore[operator]
        write_text(new / RESULT, json.dumps(result.to_dict(), indent=1) + "\n")
        out.note(new)


def _dry_message(result: PruneResult, planned: Plan, options: PruneOptions) -> str:
    told = str(planned).replace(planned.summary(), f"would remove {planned.summary()}{_by_chance(options)}")
    told = f"{head_text(planned.after)}\n\n{told}"
    return told if result.budget is None else f"{result.budget.message()}\n{told}"


def _by_chance(options: PruneOptions) -> str:
    if not options.choice.by_chance:
        return ""
    return f", chosen at random (seed {options.seed}; --method or --scores choose by worth)"


def _message(result: PruneResult, planned: Plan, options: PruneOptions) -> str:
    repaired, chance = "", _by_chance(options)
    if result.recovery is not None:
        repaired = f"; {result.recovery.method}: {result.recovery.error_left:.0%} of the error left"
    equal = f"outputs equal the masked model ({result.difference:.0e})"
    told = f"removed {planned.summary()}{chance}{repaired}; {equal}; saved to {options.out}"
    return told if result.budget is None else f"{result.budget.message()}\n{told}"
