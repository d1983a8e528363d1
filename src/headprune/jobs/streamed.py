"""`prune --stream` and `shrink --stream`: the same commands for a checkpoint that does not fit into memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, cast

from headprune.budgets.budget import within
from headprune.checkpoint.out_folder import open_out
from headprune.errors import BudgetError, DataError, MaskError
from headprune.files import write_text
from headprune.heads import HeadMap, HeadMask, HeadScores
from headprune.heads.mask import Unit
from headprune.heads.patterns import pattern
from headprune.heads.scores import Per, select
from headprune.heads.stored import read_mask, read_scores
from headprune.jobs.job import SILENT, Progress
from headprune.jobs.options.base import amount
from headprune.jobs.options.prune import PruneOptions
from headprune.jobs.options.shrink import ShrinkOptions
from headprune.memory import memory_limit
from headprune.on_disk import Streamed, stream
from headprune.on_disk.budget import shape_costs
from headprune.recovery.greedy_search import named_repair
from headprune.tasks.corpus import corpus_batches
from headprune.tasks.data import open_task
from headprune.types import Batch

CHOICE = "reconstruction"  # in place of `best`, which needs gradients through the whole model


@dataclass(frozen=True)
class StreamedModel:
    """What was written."""

    kept: dict[str, list[int]]
    heads: tuple[int, int]
    neurons: tuple[int, int]
    by: str
    out: str
    version: ClassVar[int] = 1

    def to_dict(self) -> dict[str, Any]:
        return {
            "kept": self.kept, "heads": list(self.heads), "neurons": list(self.neurons), "by": self.by, "out": self.out
        }  # fmt: skip

    def message(self) -> str:
        parts = [
            f"{before - after} of {before} {what}"
            for what, (before, after) in (("heads", self.heads), ("neurons", self.neurons))
            if before > after
        ]
        return f"removed {' and '.join(parts) or 'nothing'} from disk to disk by {self.by}; saved to {self.out}"


def prune_on_disk(options: PruneOptions, progress: Progress = SILENT) -> StreamedModel:
    """By a mask, names, a pattern, scores, or a score that needs no gradients."""
    choice = options.choice
    if choice.asked_budget is not None or options.dry_run or options.empty_site != "bias":
        raise MaskError(
            "prune --stream takes --mask, --heads, --pattern, --prune or --keep; for a budget of cost use shrink "
            "--stream."
        )
    assert options.out is not None, "checked before"
    open_out("prune", options, holds_model=True)
    repair = named_repair(choice.method, choice.recover)
    with memory_limit(options.memory), progress.steps(3) as step:
        step("looking at the checkpoint")
        streamed = stream(options.model, trust_remote_code=options.trust_remote_code)
        heads = _parts(streamed, choice.parts)
        data: list[Batch] | None = None
        if repair is not None or choice.method is not None:
            if options.data.task is None:
                raise MaskError("--method and --recover need --task: on what?")
            task = open_task(options.data, options.model)
            data = list(task.batches(task.examples("train", choice.calibration, options.seed)))
        mask, by = _choose(options, streamed, heads, data, step)
        return _write(streamed, mask, options.out, data, repair, by, step, choice.gqa, result="prune.json")


def shrink_on_disk(options: ShrinkOptions, progress: Progress = SILENT) -> StreamedModel:
    """By `reconstruction`, measured in each site by itself."""
    budget, amounts = options.amounts()
    if len(amounts) != 1 or options.out is None or options.epochs:
        raise MaskError("shrink --stream makes one model, without training: one amount, --out, and no --epochs.")
    (asked,) = amounts.values()
    open_out("shrink", options, holds_model=True)
    repair = named_repair(options.method, options.recover)
    method = CHOICE if options.method == "best" else options.method
    with memory_limit(options.memory), progress.steps(3) as step:
        step("looking at the checkpoint")
        streamed = stream(options.model, trust_remote_code=options.trust_remote_code)
        parts = options.parts if options.parts != "auto" else ("heads" if budget == "prune" else "both")
        heads = _parts(streamed, parts)
        data = _text(options, streamed)
        unit: Unit = "group" if any(s.num_kv_heads < s.num_heads for s in heads.attention) else "head"
        scores = streamed.score(data, method=method, unit=unit, parts=cast(Any, parts), tell=step)
        if budget == "prune":
            mask = select(scores, heads, prune=asked, unit=unit, at_least=options.at_least)
        else:
            costs = shape_costs(streamed.skeleton, heads, budget, unit, options.length)
            limit = (asked if isinstance(asked, float) else asked / costs.total) * costs.total - costs.rest
            if limit < 0:
                raise BudgetError(
                    f"What is neither heads nor neurons is {costs.rest / costs.total:.1%} of the model's {budget}: "
                    "less cannot be left."
                )
            mask = within(scores, heads, costs.sites, limit, unit=unit, at_least=options.at_least)
        why = " in place of best" if options.method == "best" else ""
        by = f"{budget} {next(iter(amounts))}, {method}{why} on {sum(len(b['input_ids']) for b in data)} examples"
        return _write(streamed, mask, options.out, data, repair, by, step, options.gqa, result="shrink-stream.json")


def _text(options: ShrinkOptions, streamed: Streamed) -> list[Batch]:
    if options.corpus is None:
        task = open_task(options.data, options.model)
        return list(task.batches(task.examples("train").sample(options.calibration, options.seed)))
    return list(
        corpus_batches(
            options.corpus, streamed.skeleton.model, options.model, length=options.data.max_length,
            count=options.calibration, batch_size=options.data.batch_size, seed=options.seed,
        )
    )  # fmt: skip


def _parts(streamed: Streamed, parts: str) -> HeadMap:
    heads = streamed.heads
    found = heads.neurons if parts == "neurons" else heads.attention if parts == "heads" else heads
    if not found:
        raise DataError(f"No {parts} were found in the checkpoint.")
    return found


def _choose(
    options: PruneOptions, streamed: Streamed, heads: HeadMap, data: list[Batch] | None, step: Callable[[str], None]
) -> tuple[HeadMask, str]:
    choice = options.choice
    if choice.mask is not None:
        return read_mask(choice.mask).filled(streamed.heads), f"the mask file {choice.mask.name}"
    if choice.heads is not None:
        names = [name.strip() for name in choice.heads.split(",") if name.strip()]
        return HeadMask.full(heads).without(*names), "name"
    unit, per = cast(Unit, choice.unit), cast(Per, choice.per)
    prune, keep = (None if text is None else amount(text) for text in (choice.prune, choice.keep))
    scores: HeadScores | None = None
    by = f"chance, seed {options.seed}"
    if choice.scores is not None:
        scores, by = read_scores(choice.scores), f"the scores file {choice.scores.name}"
    elif choice.method is not None and data is not None:
        method = CHOICE if choice.method == "best" else choice.method
        scores = streamed.score(data, method=method, unit=unit, parts=choice.parts, tell=step)
        by = method + (" in place of best" if choice.method == "best" else "")
    if choice.pattern is not None:
        return pattern(heads, choice.pattern, scores=scores, seed=options.seed), f"pattern {choice.pattern} by {by}"
    if scores is None:
        return HeadMask.random(heads, prune=prune, keep=keep, seed=options.seed, unit=unit), by
    mask = select(scores, heads, prune=prune, keep=keep, per=per, unit=unit, at_least=choice.at_least)
    return mask, by


def _write(
    streamed: Streamed, mask: HeadMask, out: Path, data: list[Batch] | None, repair: str | None, by: str,
    step: Callable[[str], None], gqa: Any, *, result: str,
) -> StreamedModel:  # fmt: skip
    before = streamed.heads
    whole = HeadMask.from_dict(before, mask.to_dict())
    after = streamed.prune(
        whole, out, data=data if repair is not None else None, recover=repair, gqa=gqa, about={"by": by}, tell=step
    )
    made = StreamedModel(
        kept={site.id: list(site.kept) for site in after},
        heads=(len(before.attention), len(after.attention)),
        neurons=(len(before.neurons), len(after.neurons)),
        by=by,
        out=str(out),
    )
    write_text(out / result, json.dumps(made.to_dict(), indent=1) + "\n")
    return made
