"""`evaluate`: the score of a model on a part of a task's data, alone or against another model."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headprune.checkpoint.out_folder import open_out
from headprune.errors import DataError
from headprune.files import write_text
from headprune.heads.stored import read_mask
from headprune.jobs.job import SILENT, Progress, Step
from headprune.jobs.options.evaluate import EvaluateOptions
from headprune.jobs.task_result import TaskResult
from headprune.stats import p_text, paired_bootstrap
from headprune.structure.find import find_heads
from headprune.tasks import Evaluation
from headprune.tasks import evaluate as evaluate_task
from headprune.tasks.data import TaskData, open_task
from headprune.types import Batch, Outputs


@dataclass(frozen=True, kw_only=True)
class ModelScore(TaskResult):
    """A model's score with its interval, and how fast it was."""

    heads: int
    metric: str
    score: float
    interval: tuple[float, float]
    level: float
    examples: int
    loss: float | None
    seconds: float
    examples_per_second: float


@dataclass(frozen=True, kw_only=True)
class Rival(ModelScore):
    """The other model, and how the first differs from it; `interval` is that of the change."""

    change: float
    p: float
    method: str


@dataclass(frozen=True, kw_only=True)
class Evaluated(ModelScore):
    """The score of a model, and what another one scores on the same examples."""

    split: str
    seed: int
    against: Rival | None = None
    out: Path | None = None
    rival: str | None = None
    unstored = ("out", "rival")

    def message(self) -> str:
        (low, high), other = self.interval, self.against
        told = f"{self.metric} {self.score:.4f} ({low:.4f} to {high:.4f}) on {self.examples} of {self.split}"
        if other is not None:
            told += f"; {self.rival} {other.score:.4f}, change {other.change:+.4f} ({p_text(other.p)})"
        return f"{told}; {self.examples_per_second:.1f} examples a second; {self.out}"


def evaluate(options: EvaluateOptions, progress: Progress = SILENT) -> Evaluated:
    """Score a model, with an interval; for translation, write the translations too."""
    out, split = open_out("evaluate", options).path, options.split
    models = [name for name in (options.model, options.against) if name is not None]
    parts = {name: open_task(options.data, name) for name in models}  # each reads the text with its own tokenizer
    batches = {name: part.batches(part.examples(split, options.examples, options.seed)) for name, part in parts.items()}
    if options.against is not None and split == "train" and options.data.task == "translation":
        raise DataError(
            "Training pairs are left out by their length in tokens, which is not the same for two tokenizers: choose "
            "another part to compare models on."
        )
    against: Rival | None = None
    with progress.steps(sum(len(batches[name]) for name in models)) as step:
        scorer = _Scorer(options.device, step)
        found, score = scorer.score(parts[options.model], options.model, batches[options.model], options.mask, out)
        if options.against is not None:
            place = out / "against"
            other, told = scorer.score(parts[options.against], options.against, batches[options.against], None, place)
            gap = paired_bootstrap(other.rows, found.rows, statistic=found.metric.of, seed=options.seed)
            assert gap.interval is not None, "a bootstrap gives one"
            told["interval"] = (gap.interval.low, gap.interval.high)
            against = Rival(**told, change=gap.difference, p=gap.p_value, method=gap.method)
    result = Evaluated(**score, split=split, seed=options.seed, against=against, out=out, rival=options.against)
    write_text(out / "evaluation.json", json.dumps(result.to_dict(), indent=1))
    return result


@dataclass(frozen=True)
class _Scorer:
    device: str
    step: Step

    def score(
        self, data: TaskData, name: str, batches: list[dict[str, Any]], mask: Path | None, out: Path
    ) -> tuple[Evaluation, dict[str, Any]]:
        """The evaluation, and the fields of a ModelScore."""
        model = data.load_model(name, self.device)
        heads = find_heads(model)
        chosen = read_mask(mask, heads) if mask is not None else None
        answers: list[tuple[Outputs, Batch]] = []

        def keep(outputs: Outputs, batch: Batch) -> None:
            if data.task.searches:  # others have nothing to read, and their logits would fill the memory
                answers.append((outputs, batch))

        begun = time.perf_counter()
        found = evaluate_task(model, self._counted(batches), data.task, mask=chosen, heads=heads, keep=keep)
        seconds = time.perf_counter() - begun
        summary = vars(found.summary())
        return found, {
            "settings": {**data.task.settings(), **data.task.written(answers, out)}, **summary,
            "heads": len(chosen) if chosen is not None else len(heads),
            "seconds": seconds, "examples_per_second": len(found.rows) / seconds,
        }  # fmt: skip

    def _counted(self, batches: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for batch in batches:
            self.step("evaluating")
            yield batch
