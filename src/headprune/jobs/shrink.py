"""`shrink`: a model several times cheaper, without training, in one command."""

from __future__ import annotations

import itertools
import json
import math
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, cast

from torch import nn

from headprune.checkpoint.load_model import load_model
from headprune.checkpoint.out_folder import OutFolder, check_companions, new_model_folder, open_out
from headprune.errors import FileFormatError
from headprune.files import WorkParts, write_text
from headprune.heads import HeadMask, HeadScores
from headprune.heads.picture import head_text
from headprune.jobs.export import Exported, Wanted
from headprune.jobs.job import SILENT, Progress, Step
from headprune.jobs.options.shrink import ShrinkOptions
from headprune.jobs.retrain import Lesson, retrain_
from headprune.jobs.streamed import StreamedModel, shrink_on_disk
from headprune.memory import memory_limit
from headprune.scoring.resumable import work_key
from headprune.shrink import Shrinker, Shrunk
from headprune.shrink.shrink import Parts, parts_meant
from headprune.surgery.edits import Gqa
from headprune.tasks.corpus import corpus_batches
from headprune.tasks.data import match_padding_, open_task
from headprune.tasks.recipe import Recipe
from headprune.tasks.task import evaluate
from headprune.typed_json import from_plain

RESULT = "shrink.json"  # beside the model, what was done to it
UNFINISHED = "unfinished"  # in --out, until everything is done


@dataclass(frozen=True)
class ShrinkResult:
    """One smaller model for each amount of the budget that was asked for."""

    models: tuple[Shrunk, ...]
    out: tuple[str, ...] = ()
    exported: Exported | None = None
    maps: tuple[str, ...] = ()  # for people: what stays, as squares
    version: ClassVar[int] = 1

    def to_dict(self) -> dict[str, Any]:
        found = [shrunk.to_dict() for shrunk in self.models]
        models = [{**one, "out": out} for one, out in zip(found, self.out or [None] * len(found), strict=True)]
        return {"models": models, **({"export": self.exported.to_dict()} if self.exported else {})}

    def message(self) -> str:
        rows = itertools.zip_longest(self.models, self.out, self.maps, fillvalue="")
        told = [
            "\n".join(filter(None, (f"{shrunk.budget}\n{shrunk}", shown, f"saved to {out}" if out else "")))
            for shrunk, out, shown in cast(Iterable[tuple[Shrunk, str, str]], rows)
        ]
        return "\n\n".join([*told, *([self.exported.message()] if self.exported else [])])


def shrink(options: ShrinkOptions, progress: Progress = SILENT) -> ShrinkResult | StreamedModel:
    """Choose, repair, remove and save; several budgets share what is the same for all. Models that are finished, and
    scores, are not made again after an interruption. With `export`, the model is then written in that format."""
    options.check()
    if options.stream:
        return shrink_on_disk(options, progress)
    with memory_limit(options.memory):
        return _exported(options, progress)


def _exported(options: ShrinkOptions, progress: Progress) -> ShrinkResult:
    """In memory, and in another format if that is asked for."""
    if options.export is None or options.out is None:
        return _shrunk(options, progress)
    wanted = Wanted.parse(options.export, options.corpus)
    is_file = wanted.check(options.out, force=options.force)
    folder = options.keep or options.out.absolute().parent / f".{options.out.name}-{UNFINISHED}"
    found = _shrunk(replace(options, out=folder, export=None, keep=None), progress)
    model = load_model(str(folder), options.device, trust_remote_code=options.trust_remote_code)
    exported = wanted.write(model, folder, options.out, is_file=is_file)
    if options.keep is None:
        shutil.rmtree(folder, ignore_errors=True)
    return replace(found, out=(str(options.keep or options.out),), exported=exported)


def _shrunk(options: ShrinkOptions, progress: Progress) -> ShrinkResult:
    budget, amounts = options.amounts()
    folders = {} if options.out is None or options.dry_run else _folders(options, options.out, budget, amounts)
    kept = {text: _kept(folder) for text, folder in folders.items() if folder.is_finished}
    left = [text for text in amounts if text not in kept]
    made: dict[str, Shrunk] = {}
    maps: dict[str, str] = {}
    if folders and left:
        check_companions(Path(options.model))
    with progress.steps(4 + (5 + math.ceil(options.epochs)) * len(left)) as step:
        if left:
            shrinker, lesson = _shrinker(options, budget, step)
        every = shrinker.every if left else None
        for text in left:
            if options.dry_run:
                made[text] = shrinker.planned(budget, amounts[text])
                maps[text] = head_text(shrinker.every, HeadMask.from_dict(shrinker.every, made[text].kept))
                continue
            one = shrinker if text == left[-1] and not options.epochs else shrinker.copied()
            made[text] = one.shrink_(budget, amounts[text])
            if options.epochs and lesson is not None and options.out is not None:
                place = options.out / UNFINISHED / folders[text].path.name
                made[text] = retrain_(one, made[text], shrinker.model, lesson, place, _recipe(options), step)
            assert every is not None
            maps[text] = head_text(every, HeadMask.from_dict(every, made[text].kept))
            _save(one.model, Path(options.model), folders[text], made[text])
        if left and options.out is not None and not options.dry_run:
            shutil.rmtree(options.out / UNFINISHED, ignore_errors=True)
    done = {**kept, **made}
    return ShrinkResult(
        tuple(done[text] for text in amounts), tuple(str(folder.path) for folder in folders.values()),
        maps=tuple(maps.get(text, "") for text in amounts),
    )  # fmt: skip


def _recipe(options: ShrinkOptions) -> Recipe:
    size, length = options.data.batch_size, options.data.max_length
    return Recipe(
        epochs=options.epochs, learning_rate=options.lr, batch_size=size, max_length=length, seed=options.seed
    )


def _shrinker(options: ShrinkOptions, budget: str, step: Step) -> tuple[Shrinker, Lesson | None]:
    """The model, examined and with scores: those of an interrupted run, if there are some. And what it may be trained
    on, if that is asked for."""
    step("loading the model")
    model = load_model(options.model, options.device, trust_remote_code=options.trust_remote_code)
    batches, points, lesson = _examples(options, model)
    shrinker = Shrinker.of(
        model, batches, parts=parts_meant(cast(Parts, options.parts), budget), method=options.method,
        recover=options.recover, shifts=options.shifts, ridge=options.ridge, gqa=cast(Gqa | None, options.gqa),
        at_least=options.at_least, batch=options.batch, length=options.length, seed=options.seed, evaluate=points,
        tell=step,
    )  # fmt: skip
    if options.out is None or options.dry_run:
        return shrinker, lesson
    asked = {name: getattr(options, name) for name in ("method", "recover", "gqa", "seed")}
    key = work_key(shrinker.model, batches, {**asked, "parts": sorted(shrinker.heads.original_counts())})
    parts = WorkParts(options.out / UNFINISHED, key)
    stored = parts.get("scores")
    if isinstance(stored, str):
        shrinker.known_scores = HeadScores.from_json(stored)
    else:
        parts.put("scores", shrinker.scores.to_json())
    return shrinker, lesson


def _folders(
    options: ShrinkOptions, out: Path, budget: str, amounts: Mapping[str, float | int]
) -> dict[str, OutFolder]:
    """Where each model goes; refused before the work where it may not. One of a list is what it would be alone."""
    found = {}
    for text in amounts:
        place = out if len(amounts) == 1 else out / f"{budget}-{text}".replace("%", "pct")
        alone: dict[str, Any] = {"out": place, budget: text}
        found[text] = open_out("shrink", replace(options, **alone), holds_model=True)
    return found


def _kept(folder: OutFolder) -> Shrunk:
    """What an earlier run of the same command found."""
    stored = folder.kept(RESULT)
    try:
        return from_plain(Shrunk, stored)
    except (TypeError, ValueError) as error:
        raise FileFormatError(f"'{folder.path / RESULT}' is damaged ({error}). --force makes it anew.") from error


def _examples(
    options: ShrinkOptions, model: nn.Module
) -> tuple[list[dict[str, Any]], Callable[[nn.Module], float] | None, Lesson | None]:
    """Calibration batches; with a task that has dev examples, its metric on them in points; and what to train on."""
    if options.corpus is not None:
        return corpus_batches(
            options.corpus, model, options.model, length=options.data.max_length, count=options.calibration,
            batch_size=options.data.batch_size, seed=options.seed,
        ), None, None  # fmt: skip
    data = open_task(options.data, options.model)
    match_padding_(model, data.processor)
    every = data.examples("train")
    sample = every.sample(options.calibration, options.seed)
    batches, lesson = data.batches(sample), Lesson(data, every, sample)
    if options.max_drop is None:
        return batches, None, lesson
    dev, metric = data.batches(data.examples("dev")), data.task.metric

    def points(model: nn.Module) -> float:
        return metric.gain(0.0, evaluate(model, dev, data.task).score) / metric.point

    return batches, points, lesson


def _save(model: nn.Module, source: Path, out: OutFolder, shrunk: Shrunk) -> None:
    """The smaller model with all that a model folder holds, and what was done to it."""
    with new_model_folder(out.path, source) as new:
        model.save_pretrained(new)  # type: ignore[operator]
        write_text(new / RESULT, json.dumps(shrunk.to_dict(), indent=1) + "\n")
        out.note(new)
