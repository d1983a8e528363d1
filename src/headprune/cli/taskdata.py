"""What the commands that need data share: the task, its examples, the tokenizer, batches."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headprune.errors import DataError

if TYPE_CHECKING:
    from headprune.tasks import Evaluation, TextTask
    from headprune.tasks.classification import Examples

Task = Annotated[str, typer.Option(help="A GLUE task by name (sst2, cola, mrpc, …), or a name for your own data.")]
DataDir = Annotated[
    Path | None,
    typer.Option(help="Folder with the data: a folder per task, or the task's files. Default: $HEADPRUNE_DATA."),
]
TextColumn = Annotated[str | None, typer.Option(help="Column of the text, by name or number, for your own data.")]
PairColumn = Annotated[str | None, typer.Option(help="Column of the second text, if there are two.")]
LabelColumn = Annotated[str | None, typer.Option(help="Column of the label.")]
BatchSize = Annotated[int, typer.Option(help="Examples a batch.")]
MaxLength = Annotated[int, typer.Option(help="Tokens an example at most.")]


def task_folder(task: str, data_dir: Path | None) -> Path:
    """`DIR/task` if it is there, else DIR itself."""
    root = data_dir or (Path(os.environ["HEADPRUNE_DATA"]) if os.environ.get("HEADPRUNE_DATA") else None)
    if root is None:
        raise DataError("Where is the data? Give its folder with --data-dir, or set HEADPRUNE_DATA.")
    if not root.is_dir():
        raise DataError(f"The data folder '{root}' does not exist.")
    return root / task if (root / task).is_dir() else root


def load_tokenizer(name: str) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"'{name}' has no tokenizer ({error}). Save one into the model's folder.") from error


def batches(examples: Examples, tokenizer: Any, task: TextTask, batch_size: int, max_length: int) -> list[Any]:
    made = examples.batches(tokenizer, batch_size=batch_size, max_length=max_length, is_regression=task.is_regression)
    return list(made)


def without_rows(made: list[Any]) -> list[Any]:
    """Batches as the model takes them."""
    return [{name: value for name, value in batch.items() if name != "row"} for batch in made]


def described(evaluation: Evaluation) -> dict[str, Any]:
    """A score with its interval, for JSON."""
    interval = evaluation.interval()
    return {
        "metric": evaluation.metric,
        "score": evaluation.score,
        "interval": [interval.low, interval.high],
        "level": interval.level,
        "examples": len(evaluation.labels),
        "loss": float(evaluation.losses.mean()),
    }
