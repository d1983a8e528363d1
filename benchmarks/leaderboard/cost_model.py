"""A model of the board by cost with its data, and how its cells are measured."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from benchmarks.leaderboard.by_cost import EVEN, FIRST_LAYERS, INGREDIENTS, SAME, SHIFTS, TEXTS, CostSpec
from benchmarks.leaderboard.calibration_error import Confidences
from benchmarks.leaderboard.comparisons import keep
from benchmarks.leaderboard.measure import CALIBRATION, CALIBRATION_TEXTS, TEST_TOKENS, _log_loss
from benchmarks.leaderboard.places import LENGTHS, Folders
from benchmarks.leaderboard.speed import BATCH, LENGTH, times_of

from headprune.cost.measurement import measure
from headprune.recovery.greedy_search import BEST, named_repair
from headprune.scoring.densities import even_shares
from headprune.shrink import Shrinker, Shrunk
from headprune.stats import paired_bootstrap
from headprune.structure.find import find_heads
from headprune.tasks import evaluate
from headprune.tasks.data import TaskData, match_padding_, open_task
from headprune.tasks.task import Evaluation, Examples

LEARNING_RATE = 1e-4  # of the epochs after the cut, as `headprune shrink` has it


@dataclass
class Smaller:
    """What a cell is about: a model, and what is known of it."""

    model: Any
    seconds: float  # processor time of choosing, repairing, training
    facts: dict[str, Any] = field(default_factory=dict)
    macs: float | None = None  # left of the whole model's, where they cannot be counted


@dataclass
class CostModel:
    """One fine-tuned model of the board by cost with its data."""

    whole: Any
    folder: Path
    data: TaskData
    dev: list[dict[str, Any]]
    train: Examples
    folders: Folders
    rows: Path  # what was scored in earlier cells, to compare with
    shrinkers: dict[tuple[str, str], tuple[Shrinker, float]] = field(default_factory=dict)
    full: tuple[Evaluation, float | None] | None = None

    @classmethod
    def of(cls, spec: CostSpec, folders: Folders, rows: Path) -> CostModel:
        from headprune.checkpoint.load_model import load_model

        folder = folders.model(spec.model, spec.data, spec.tuning)
        data = open_task(folders.options(spec.data), str(folder))
        model = match_padding_(load_model(str(folder), "cpu"), data.processor)
        dev = data.examples("test" if spec.data in TEXTS else "dev")
        most = folders.scored(spec.model, spec.data)
        if spec.data in TEXTS:
            most = -(-TEST_TOKENS // LENGTHS[spec.data])
        if most is not None:
            dev = dev.subset(list(range(min(len(dev), most))))
        train = data.examples("dev" if spec.data in TEXTS else "train")
        return cls(model, folder, data, data.batches(dev), train, folders, rows)

    def measured(self, spec: CostSpec) -> dict[str, Any]:
        """One cell."""
        began = time.process_time()
        if self.full is None:
            self.full = self._scored(self.whole)
        full, full_error = self.full
        smaller = self._smaller(spec)
        found, error = self._scored(smaller.model)
        keep(self.rows, spec, found.rows)
        gap = paired_bootstrap(full.rows, found.rows, statistic=full.metric.of, seed=spec.seed)
        assert gap.interval is not None
        return {
            "metric": found.metric.name, "full": full.score, "score": found.score, "nll_full": _log_loss(full),
            "nll": _log_loss(found), "ece_full": full_error, "ece": error, "examples": len(found.rows),
            "change": {"difference": gap.difference, "interval": [gap.interval.low, gap.interval.high]},
            "seconds": smaller.seconds, **self._cost(smaller), **smaller.facts, "took": time.process_time() - began,
        }  # fmt: skip

    def _scored(self, model: Any) -> tuple[Evaluation, float | None]:
        """The score with examples, and the expected calibration error where there are classes to be sure of."""
        sure = Confidences()
        is_text = self.data.options.task == "causal-lm"
        found = evaluate(model, self.dev, self.data.task, keep=(lambda *_: None) if is_text else sure.keep)
        return found, None if is_text else sure.error()

    def _cost(self, smaller: Smaller) -> dict[str, Any]:
        """MACs left and the speed-up, each against the whole model."""
        macs = smaller.macs if smaller.macs is not None else self._macs_left(smaller.model)
        return {"macs": macs, **times_of(smaller.model, self.whole)}

    def _smaller(self, spec: CostSpec) -> Smaller:
        if spec.method in FIRST_LAYERS:
            return self._first_layers(spec)
        if spec.method.startswith("int8"):
            return self._quantised(self.whole, spec.method, 0.0, {"recover": "none"})
        one, shrunk, seconds, facts = self._shrunk(spec)
        if "+" in spec.method:
            return self._quantised(one.model, spec.method.partition("+")[2], seconds, facts)
        if spec.epochs:
            began = time.process_time()
            self._train_(one, shrunk, spec)
            seconds += time.process_time() - began
        return Smaller(one.model, seconds, facts)

    def _shrunk(self, spec: CostSpec) -> tuple[Shrinker, Shrunk, float, dict[str, Any]]:
        """As `hp.shrink_` does; scores are the same for all budgets and taken once."""
        method = spec.method.partition("+")[0]
        recover = named_repair("best", None) if spec.recover == SAME else spec.recover
        key = (method if spec.budget != "prune" else f"{method}, heads alone", spec.recover)
        if key not in self.shrinkers:
            self.shrinkers.clear()  # one at a time: matrices of a large model are large
            began = time.process_time()
            shrinker = self._shrinker(method, recover, "heads" if spec.budget == "prune" else "both", spec.seed)
            self.shrinkers[key] = shrinker, time.process_time() - began
        shrinker, scoring = self.shrinkers[key]
        began = time.process_time()
        one = shrinker.copied()
        shrunk = one.shrink_(spec.budget, spec.amount, repeats=0)
        seconds = scoring + time.process_time() - began
        left = find_heads(one.model, neurons=True)
        facts = {
            "recover": one.way.recover or "none", "shifts": one.way.shifts,
            "calibration": len(self._calibration(spec.seed)),
            "heads": len(left.attention), "neurons": len(left.neurons),
        }  # fmt: skip
        return one, shrunk, seconds, facts

    def _shrinker(self, method: str, recover: str | None, parts: str, seed: int) -> Shrinker:
        options = {"parts": parts, "recover": recover or "none", **INGREDIENTS.get(method, {})}
        if method == "best-shifts":
            options["shifts"] = 0.0 if BEST.shifts else SHIFTS
        batches = self.data.batches(self._calibration(seed))
        if not options.pop("labels", True):
            batches = [{name: value for name, value in batch.items() if name != "labels"} for batch in batches]
        named = "best" if method in INGREDIENTS else EVEN.get(method, method)
        shrinker = Shrinker.of(self.whole, batches, method=named, batch=BATCH, length=LENGTH, seed=seed, **options)
        scores = shrinker.scores
        if method in EVEN:
            shrinker.known_scores = even_shares(self.whole, shrinker.heads, scores, shrinker.unit)
        return shrinker

    def _calibration(self, seed: int) -> Examples:
        is_text = self.data.options.task == "causal-lm"
        return self.train.sample(CALIBRATION_TEXTS if is_text else CALIBRATION, seed)

    def _train_(self, one: Shrinker, shrunk: Shrunk, spec: CostSpec) -> None:
        from headprune.jobs.retrain import Lesson, retrain_
        from headprune.tasks.recipe import Recipe

        options = self.data.options
        recipe = Recipe(
            epochs=spec.epochs, learning_rate=LEARNING_RATE, batch_size=options.batch_size,
            max_length=options.max_length, seed=spec.seed, bf16=True,
        )  # fmt: skip
        lesson = Lesson(self.data, self.train, self._calibration(spec.seed))
        with tempfile.TemporaryDirectory() as folder:
            retrain_(one, shrunk, self.whole, lesson, Path(folder) / "training", recipe, lambda what: None)

    def _first_layers(self, spec: CostSpec) -> Smaller:
        from headprune.checkpoint.load_model import load_model

        count = spec.method.partition("-")[2]
        folder = self.folders.model(f"{spec.model}-first{count}", spec.data, spec.tuning)
        model = match_padding_(load_model(str(folder), "cpu"), self.data.processor)
        return Smaller(model, 0.0, {"recover": "none"})

    def _quantised(self, model: Any, how: str, seconds: float, facts: dict[str, Any]) -> Smaller:
        from benchmarks.leaderboard.int8 import quantised

        began = time.process_time()
        small = quantised(model, how)
        seconds += time.process_time() - began
        return Smaller(small, seconds, facts, self._macs_left(model))

    def _macs_left(self, model: Any) -> float:
        left, whole = (measure(m, batch=BATCH, length=LENGTH, repeats=0).macs.total for m in (model, self.whole))
        return float(left / whole)


@contextmanager
def one_thread() -> Iterator[None]:
    """Speeds of a thread are speeds of a model; of two they are of a machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
