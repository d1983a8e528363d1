"""How a training ends: the model is saved, scored and told of. What `finetune`, `train-mt` and `train-lm` share."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from headprune.checkpoint.out_folder import OutFolder, new_model_folder
from headprune.files import noted_steps, write_text
from headprune.structure.find import find_heads
from headprune.tasks import Evaluation, ScoreSummary, Task, evaluate
from headprune.tasks.trainers import VALIDATION
from headprune.typed_json import from_plain, rest, to_plain
from headprune.types import Batch


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A model that was trained: the heads it has and had, and its score on each part of the data."""

    task: str
    metric: str
    kept: Mapping[str, list[int]]
    original: Mapping[str, int]
    dev: ScoreSummary
    tests: Mapping[str, ScoreSummary] = field(default_factory=dict)  # stored beside `dev`, each under its own name
    line: str = ""  # for people; not stored
    facts: Mapping[str, Any] = rest()  # settings of the task and of the training
    version: ClassVar[int] = 1

    def to_dict(self) -> dict[str, Any]:
        plain: dict[str, Any] = to_plain(replace(self, tests={}))
        del plain["tests"], plain["line"]
        return {**plain, **to_plain(self.tests)}

    @classmethod
    def from_dict(cls, content: object) -> Trained:
        read = from_plain(cls, content)
        scores = ScoreSummary.__dataclass_fields__.keys()
        found = {name: one for name, one in read.facts.items() if isinstance(one, dict) and scores <= one.keys()}
        tests = {name: from_plain(ScoreSummary, one) for name, one in found.items()}
        return replace(read, tests=tests, facts={name: one for name, one in read.facts.items() if name not in found})

    def scores(self, digits: int) -> str:
        """The score of each part with its interval, in one line."""
        return "; ".join(
            f"{name} {self.metric} {one.score:.{digits}f} ({one.interval[0]:.{digits}f} to "
            f"{one.interval[1]:.{digits}f})"
            for name, one in {"dev": self.dev, **self.tests}.items()
        )

    def message(self) -> str:
        return self.line


def finish(
    out: OutFolder, model: Any, processor: Any, task: Task, parts: Mapping[str, Sequence[Batch]],
    facts: Mapping[str, object],
) -> Trained:  # fmt: skip
    """Score every part of the data; save model, tokenizer and OUT/COMMAND.json, which says all of it, in one."""
    found: dict[str, Evaluation] = {part: evaluate(model, batches, task) for part, batches in parts.items()}
    heads, dev = find_heads(model), found.pop("dev")
    trained = Trained(
        task=task.name, metric=task.metric.name, kept=heads.kept(), original=heads.original_counts(),
        dev=dev.summary(), tests={part: one.summary() for part, one in found.items()},
        facts={**task.settings(), **facts},
    )  # fmt: skip
    with new_model_folder(out.path) as new:
        model.save_pretrained(new)
        if processor is not None:
            processor.save_pretrained(new)
        write_text(new / f"{out.command}.json", json.dumps(trained.to_dict(), indent=1))
        out.note(new)
    return trained


def finished(out: OutFolder) -> Trained:
    """The result of the same training, which was finished before."""
    told = f"'{out.path}' was trained by this very command and is kept; --force makes it anew"
    return replace(Trained.from_dict(out.kept(f"{out.command}.json")), line=told)


def training_facts(checkpoints: Path, model: Any, steps: int) -> dict[str, object]:
    """What is told of a training from random weights: how large, how long, and what was seen meanwhile."""
    noted = noted_steps(checkpoints / VALIDATION)
    return {
        "model_class": type(model).__name__, "parameters": sum(p.numel() for p in model.parameters()),
        "steps": noted[-1]["step"] if noted else steps, "seconds": noted[-1]["seconds"] if noted else 0.0,
        "validation": noted,
    }  # fmt: skip
