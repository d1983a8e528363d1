"""A model of the leaderboard with its data, and how its cells are measured."""

from __future__ import annotations

import copy
import math
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headprune.jobs.options.base import TaskOptions
from headprune.recovery.greedy_search import Calibration
from headprune.tasks.data import TaskData, match_padding_, open_task

if TYPE_CHECKING:
    from benchmarks.leaderboard import Spec

    from headprune.heads import HeadMask
    from headprune.tasks.recipe import Recipe
    from headprune.tasks.task import Evaluation

TEXTS = ("wikitext2",)
LENGTHS = {"mrpc": 128, "wikitext2": 256}  # tokens an example; 64 elsewhere
TEST_TOKENS = 32_000  # of running text
CALIBRATION, CALIBRATION_TEXTS = 512, 32  # examples to score on and to repair with
BY_HEAD, BY_HEAD_PART = ("ablation", "all-but-one"), 4  # a forward pass for each head: a quarter on large models
GATES = {"voita": "hard-concrete", "shim": "binary-concrete"}
GATE_RATE = 0.05


@dataclass
class BoardModel:
    """One model of the board with its data."""

    model: Any
    heads: Any
    data: TaskData
    dev: list[dict[str, Any]]
    seen: dict[Any, Any] = field(default_factory=dict)  # scores and evaluations that several cells need

    @classmethod
    def of(cls, folder: str, data: str, data_dir: Path | None) -> BoardModel:
        from headprune.checkpoint.load_model import load_model
        from headprune.structure.find import find_heads

        is_text = data in TEXTS
        place = data_dir / data if data_dir is not None and is_text else data_dir
        length = LENGTHS.get(data, 64)
        task = "causal-lm" if is_text else data
        size = 8 if is_text else 32
        opened = open_task(TaskOptions(task=task, data_dir=place, max_length=length, batch_size=size), folder)
        model = load_model(folder, "cpu")
        match_padding_(model, opened.processor)
        rows = opened.examples("test" if is_text else "dev")
        if is_text:
            rows = rows.subset(list(range(min(len(rows), math.ceil(TEST_TOKENS / length)))))
        return cls(model, find_heads(model), opened, opened.batches(rows))

    @property
    def is_text(self) -> bool:
        return self.data.options.task == "causal-lm"

    def full_log_loss(self) -> float:
        """With all heads: what the model is known by."""
        return _log_loss(self._evaluated(None, "none", 0)[0])

    def measured(self, spec: Spec) -> dict[str, Any]:
        """One cell."""
        from benchmarks.leaderboard import BASELINE

        from headprune.stats import paired_bootstrap

        full, _ = self._evaluated(None, "none", spec.seed)
        found, heads, seconds = self._result(spec)
        measured: dict[str, Any] = {
            "metric": found.metric.name,
            "full": full.score,
            "score": found.score,
            "nll_full": _log_loss(full),
            "nll": _log_loss(found),
            "seconds": seconds,
            "heads": heads,
            "calibration": len(self._calibration(spec).rows),
        }
        if (spec.method, spec.recover) != BASELINE:
            rival, _, _ = self._result(replace(spec, method=BASELINE[0], recover=BASELINE[1]))
            gap = paired_bootstrap(rival.rows, found.rows, statistic=found.metric.of, seed=spec.seed)
            assert gap.interval is not None
            measured["against"] = {"change": gap.difference, "interval": [gap.interval.low, gap.interval.high]}
        return measured

    def _result(self, spec: Spec) -> tuple[Evaluation, int, float]:
        """What a cell scores, its heads, and the seconds that it took to choose, repair and train."""
        key = ("result", spec)
        if key not in self.seen:
            if spec.epochs:
                self.seen[key] = self._trained(spec)
            else:
                mask, seconds = self._chosen(spec)
                found, repairing = self._evaluated(mask, spec.recover, spec.seed)
                self.seen[key] = found, len(mask), seconds + repairing
        return self.seen[key]  # type: ignore[no-any-return]

    def _calibration(self, spec: Spec) -> Calibration:
        count = CALIBRATION_TEXTS if self.is_text else CALIBRATION
        if spec.method in BY_HEAD and not spec.is_small:
            count //= BY_HEAD_PART
        key = ("calibration", count, spec.seed)
        if key not in self.seen:
            split = "dev" if self.is_text else "train"  # where the score is on the test text
            rows = self.data.examples(split, count, spec.seed)
            self.seen[key] = Calibration(self.model, self.heads, self.data.batches(rows), split, spec.seed)
        return self.seen[key]  # type: ignore[no-any-return]

    def _chosen(self, spec: Spec) -> tuple[HeadMask, float]:
        """The mask, and how long it took to choose it. Scores are the same at every share: taken once."""
        from headprune.heads.scores import select
        from headprune.recovery import SearchConfig

        calibration, config = self._calibration(spec), SearchConfig.named(spec.method, spec.recover)
        method = config.method  # of a choice by score, which other cells share
        if not config.is_choice_by_score:
            began = time.process_time()
            mask = calibration.search(spec.method, spec.recover, prune=spec.prune, unit=spec.unit)
            return mask, time.process_time() - began
        if spec.method == "budhraja":
            return select(calibration.scores("random"), self.heads, prune=spec.prune, per="site"), 0.0
        key = ("scores", method, spec.seed)
        if key not in self.seen:
            began = time.process_time()
            self.seen[key] = calibration.scores(method, spec.unit), time.process_time() - began
        scores, seconds = self.seen[key]
        mask = select(scores, self.heads, prune=spec.prune, unit=spec.unit)  # type: ignore[arg-type]
        return mask, seconds

    def _evaluated(self, mask: HeadMask | None, recover: str, seed: int) -> tuple[Evaluation, float]:
        """The score with examples, and the seconds that the repair took."""
        from benchmarks.leaderboard import WINNER, Spec

        from headprune.heads import HeadMask
        from headprune.surgery.prune import prune_
        from headprune.tasks import evaluate

        mask = mask if mask is not None else HeadMask.full(self.heads)
        key = (mask, recover, seed if recover != "none" else 0)
        if key not in self.seen:
            calibration = self._calibration(Spec("", "", *WINNER, 0.0, 0, seed))
            began = time.process_time()
            with calibration.repaired(mask, None if recover == "none" else recover):
                repairing = time.process_time() - began if recover != "none" else 0.0
                smaller = prune_(copy.deepcopy(self.model), mask)  # answers as the masked one would, but sooner
            self.seen[key] = evaluate(smaller, self.dev, self.data.task), repairing
        return self.seen[key]  # type: ignore[no-any-return]

    def _trained(self, spec: Spec) -> tuple[Evaluation, int, float]:
        """Pruned for real, then trained; gates choose while they train, within the same steps."""
        from headprune.structure.find import find_heads
        from headprune.surgery.prune import prune_
        from headprune.tasks import evaluate
        from headprune.tasks.finetune import finetune
        from headprune.tasks.recipe import Recipe

        began = time.process_time()
        learner = copy.deepcopy(self.model)
        options = self.data.options
        recipe = Recipe(
            epochs=spec.epochs, learning_rate=5e-5, batch_size=options.batch_size, max_length=options.max_length,
            seed=spec.seed, bf16=True,
        )  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            if spec.method in GATES:
                learner = self._gated(learner, spec, recipe, Path(folder))
            else:
                mask, choosing = self._chosen(spec)
                began = time.process_time() - choosing  # which another cell may have done
                if spec.recover != "none":
                    calibration = self._calibration(spec)
                    replace(calibration, model=learner).repair(mask, spec.recover)
                prune_(learner, mask)
                examples = self.data.examples("train")
                finetune(learner, self.data.processor, self.data.task, examples, Path(folder), recipe, quiet=True)
        seconds = time.process_time() - began
        return evaluate(learner, self.dev, self.data.task), len(find_heads(learner)), seconds

    def _gated(self, learner: Any, spec: Spec, recipe: Recipe, folder: Path) -> Any:
        """Gates that decide in the first 70 % of the steps; the rest of training is with the heads that stay."""
        from headprune.gates import Objective, attach_gates
        from headprune.heads import heads_to_prune
        from headprune.tasks.finetune import Gating, finetune

        examples = self.data.examples("train")
        steps = recipe.steps(examples)
        gates = attach_gates(learner, GATES[spec.method], seed=spec.seed)
        keep = len(self.heads) - heads_to_prune(len(self.heads), prune=spec.prune)
        objective = Objective(target=keep, warmup=round(0.4 * steps), freeze_after=round(0.7 * steps))
        gating = Gating(objective=objective, gate_lr=GATE_RATE)
        finetune(learner, self.data.processor, self.data.task, examples, folder, recipe, gating=gating, quiet=True)
        return gates.remove_()


def _log_loss(found: Evaluation) -> float:
    """Of a language model per token, of a classifier per example."""
    return math.log(found.score) if found.metric.name == "perplexity" else float(found.losses.mean())
