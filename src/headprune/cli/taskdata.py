"""What the commands that need data share: the task, its examples, the tokenizer, batches."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headprune.cli.options import quiet_transformers
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


@dataclass(frozen=True)
class TaskData:
    """A task with its folder and a tokenizer: everything between a file and a batch."""

    task: TextTask
    folder: Path
    tokenizer: Any
    batch_size: int
    max_length: int

    @classmethod
    def open(
        cls,
        name: str,
        data_dir: Path | None,
        columns: tuple[str | None, str | None, str | None],
        tokenizer_of: str,
        batch_size: int,
        max_length: int,
    ) -> TaskData:
        """From the options as typed; `columns` are those of the text, the second text and the label."""
        from headprune.tasks import find_task

        task = find_task(name, text=columns[0], pair=columns[1], label=columns[2])
        folder = _task_folder(name, data_dir)
        return cls(task, folder, _load_tokenizer(tokenizer_of), batch_size, max_length)

    def examples(self, split: str, count: int = 0, seed: int = 0) -> Examples:
        """A part of the data, or a random sample of it."""
        rows = self.task.load(self.folder, split)
        return rows.sample(count, seed) if count else rows

    def batches(self, examples: Examples) -> list[dict[str, Any]]:
        """Batches that know which example is in which row."""
        return list(
            examples.batches(
                self.tokenizer,
                batch_size=self.batch_size,
                max_length=self.max_length,
                is_regression=self.task.is_regression,
            )
        )

    def inputs(self, examples: Examples) -> list[dict[str, Any]]:
        """Batches as the model takes them."""
        return [{k: v for k, v in batch.items() if k != "row"} for batch in self.batches(examples)]


def _task_folder(task: str, data_dir: Path | None) -> Path:
    """`DIR/task` if it is there, else DIR itself."""
    root = data_dir or (Path(os.environ["HEADPRUNE_DATA"]) if os.environ.get("HEADPRUNE_DATA") else None)
    if root is None:
        raise DataError("Where is the data? Give its folder with --data-dir, or set HEADPRUNE_DATA.")
    if not root.is_dir():
        raise DataError(f"The data folder '{root}' does not exist.")
    return root / task if (root / task).is_dir() else root


def _load_tokenizer(name: str) -> Any:
    from transformers import AutoTokenizer

    quiet_transformers()
    try:
        return AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"'{name}' has no tokenizer ({error}). Save one into the model's folder.") from error


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
