"""`shrink`: a model several times cheaper, without training, in one command."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from torch import nn

from headprune.checkpoint.companions import new_model_folder
from headprune.checkpoint.load_model import load_model
from headprune.checkpoint.out_folder import OutFolder, open_out
from headprune.files import write_text
from headprune.jobs.job import SILENT, Progress
from headprune.jobs.options.shrink import ShrinkOptions
from headprune.shrink import Shrinker, Shrunk
from headprune.shrink.shrink import parts_meant
from headprune.tasks.corpus import corpus_batches
from headprune.tasks.data import match_padding_, open_task
from headprune.tasks.task import evaluate

RESULT = "shrink.json"  # beside the model, what was done to it


@dataclass(frozen=True)
class ShrinkResult:
    """One smaller model for each amount of the budget that was asked for."""

    models: tuple[Shrunk, ...]
    out: tuple[str, ...] = ()
    version: ClassVar[int] = 1

    def to_dict(self) -> dict[str, Any]:
        found = [shrunk.to_dict() for shrunk in self.models]
        return {"models": [{**one, "out": out} for one, out in zip(found, self.out or [None] * len(found), strict=True)]}

    def message(self) -> str:
        told = [
            f"{shrunk.budget}\n{shrunk}" + (f"\nsaved to {out}" if out else "")
            for shrunk, out in zip(self.models, self.out or [""] * len(self.models), strict=True)
        ]
        return "\n\n".join(told)


def shrink(options: ShrinkOptions, progress: Progress = SILENT) -> ShrinkResult:
    """Choose, repair, remove and save; several budgets share what is the same for all."""
    options.check()
    budget, amounts = options.amounts()
    folders = [] if options.dry_run else _folders(options, budget, amounts)
    done: list[Shrunk] = []
    with progress.steps(3 + 5 * len(amounts)) as step:
        step("loading the model")
        model = load_model(options.model, options.device, trust_remote_code=options.trust_remote_code)
        batches, points = _examples(options, model)
        shrinker = Shrinker.of(
            model, batches, parts=parts_meant(options.parts, budget), method=options.method, recover=options.recover,
            gqa=options.gqa, at_least=options.at_least, batch=options.batch, length=options.length, seed=options.seed,
            evaluate=points, tell=step,
        )  # fmt: skip
        for number, amount in enumerate(amounts):
            if options.dry_run:
                done.append(shrinker.planned(budget, amount))
                continue
            one = shrinker if number == len(amounts) - 1 else shrinker.copied()
            done.append(one.shrink_(budget, amount))
            _save(one.model, Path(options.model), folders[number], done[-1])
    return ShrinkResult(tuple(done), tuple(str(folder.path) for folder in folders))


def _folders(options: ShrinkOptions, budget: str, amounts: list[float | int]) -> list[OutFolder]:
    """Where each model goes; refused before the work where it may not."""
    assert options.out is not None, "checked before"
    names = [""] if len(amounts) == 1 else [f"{budget}-{amount:g}" for amount in amounts]
    places = [replace(options, out=options.out / name) for name in names]
    return [open_out("shrink", place, holds_model=True) for place in places]


def _examples(
    options: ShrinkOptions, model: nn.Module
) -> tuple[list[dict[str, Any]], Callable[[nn.Module], float] | None]:
    """Calibration batches; and with a task that has dev examples, its metric on them in points."""
    if options.corpus is not None:
        return corpus_batches(
            options.corpus, model, options.model, length=options.data.max_length, count=options.calibration,
            batch_size=options.data.batch_size, seed=options.seed,
        ), None  # fmt: skip
    data = open_task(options.data, options.model)
    match_padding_(model, data.processor)
    batches = data.batches(data.examples("train", options.calibration, options.seed))
    if options.max_drop is None:
        return batches, None
    dev, metric = data.batches(data.examples("dev")), data.task.metric

    def points(model: nn.Module) -> float:
        return metric.gain(0.0, evaluate(model, dev, data.task).score) / metric.point

    return batches, points


def _save(model: nn.Module, source: Path, out: OutFolder, shrunk: Shrunk) -> None:
    """The smaller model with all that a model folder holds, and what was done to it."""
    with new_model_folder(out.path, source) as new:
        model.save_pretrained(new)  # type: ignore[operator]
        write_text(new / RESULT, json.dumps(shrunk.to_dict(), indent=1) + "\n")
        out.note(new)
