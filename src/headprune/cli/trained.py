"""How a training from the start ends: the model is saved, scored and told of. What `train-mt` and `train-lm` share."""

from __future__ import annotations

import json as json_module
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headprune.structure.find import heads_left
from headprune.typed_json import to_plain

if TYPE_CHECKING:
    from headprune.tasks import Task


def finished(
    command: str, out: Path, model: Any, tokenizer: Any, task: Task, parts: Mapping[str, Any], batch_size: int,
    facts: Mapping[str, Any],
) -> dict[str, Any]:  # fmt: skip
    """Save model and tokenizer, score every part of the data, and write OUT/COMMAND.json with all of it."""
    from headprune.files import noted_steps, write_text
    from headprune.tasks import evaluate
    from headprune.tasks.trainers import VALIDATION

    noted = noted_steps(out / "checkpoints" / VALIDATION)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    result: dict[str, Any] = {
        **task.settings(), **facts, "model_class": type(model).__name__,
        "parameters": sum(p.numel() for p in model.parameters()),
        "steps": noted[-1]["step"] if noted else facts["steps"],
        "seconds": noted[-1]["seconds"] if noted else 0.0, "validation": noted, **heads_left(model),
    }  # fmt: skip
    result |= {
        name: to_plain(evaluate(model, list(part.batches(batch_size)), task).summary()) for name, part in parts.items()
    }
    write_text(out / f"{command}.json", json_module.dumps(result, indent=1))
    return result


def scores_told(result: Mapping[str, Any], parts: Iterable[str], digits: int) -> str:
    """The score of each part with its interval, in one line."""
    return "; ".join(
        f"{name} {result['metric']} {result[name]['score']:.{digits}f} ({result[name]['interval'][0]:.{digits}f} to "
        f"{result[name]['interval'][1]:.{digits}f})"
        for name in parts
    )
