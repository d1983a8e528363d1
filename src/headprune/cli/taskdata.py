"""What the commands that need data share: the task's options, its examples, the tokenizer, batches."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from headprune.cli.options import quiet_transformers
from headprune.errors import DataError

if TYPE_CHECKING:
    from headprune.tasks import Evaluation, Examples, Source, Task

NAMES = "sst2, cola, mrpc, mnli, qqp, qnli, rte, stsb, tags, questions, images, causal-lm, masked-lm, encoded"


@dataclass(frozen=True)
class TaskOptions:
    """The options as typed. Every field is an option of each command that `takes_task`."""

    task: Annotated[str | None, typer.Option(help=f"{NAMES}; or any name, with --text, for your own texts.")] = "sst2"
    data_dir: Annotated[
        Path | None,
        typer.Option(help="Folder with the data: a folder per task, or the task's files. Default: $HEADPRUNE_DATA."),
    ] = None
    dataset: Annotated[
        str | None, typer.Option(help="A data set of the datasets library instead: NAME or NAME:CONFIG.")
    ] = None
    text: Annotated[str | None, typer.Option(help="Column of the text, by name or number, for your own data.")] = None
    pair: Annotated[str | None, typer.Option(help="Column of the second text, if there are two.")] = None
    label: Annotated[str | None, typer.Option(help="Column of the label.")] = None
    metric: Annotated[str | None, typer.Option(help="Another metric than the task's own: accuracy, f1, …")] = None
    batch_size: Annotated[int, typer.Option(help="Examples a batch.")] = 32
    max_length: Annotated[int, typer.Option(help="Tokens an example at most.")] = 128

    def find(self) -> tuple[Task, Source]:
        """The task, and where its examples are."""
        from headprune.tasks import Source, find_task

        if self.task is None:
            raise DataError("Which task? Say it with --task.")
        task = find_task(self.task, text=self.text, pair=self.pair, label=self.label, metric=self.metric)
        if self.dataset is not None:
            return task, Source(dataset=self.dataset)
        return task, Source(folder=_task_folder(self.task, self.data_dir))

    def open(self, model: str) -> TaskData:
        """The task as a trained model does it."""
        from transformers import AutoConfig

        task, source = self.find()
        quiet_transformers()
        return TaskData(task.for_model(AutoConfig.from_pretrained(model)), source, load_processor(task, model), self)

    def open_new(self, model: str) -> TaskData:
        """The task for a model that is to learn it: its classes are those of the training data."""
        task, source = self.find()
        return TaskData(task.learned_from(source), source, load_processor(task, model), self)


def takes_task(**defaults: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command whose parameter `data` is TaskOptions all of these as options of its own."""

    def widen(command: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(TaskOptions, include_extras=True)
        own = get_type_hints(command, include_extras=True)
        options = [
            inspect.Parameter(
                field.name, inspect.Parameter.KEYWORD_ONLY, annotation=hints[field.name],
                default=defaults.get(field.name, field.default),
            )
            for field in fields(TaskOptions)
        ]  # fmt: skip

        @functools.wraps(command)
        def widened(**given: Any) -> None:
            typed = {field.name: given.pop(field.name) for field in fields(TaskOptions)}
            command(**given, data=TaskOptions(**typed))

        before = [p for p in inspect.signature(command).parameters.values() if p.name != "data"]
        cut = next((i for i, p in enumerate(before) if p.name == "seed"), len(before))
        before = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=own[p.name]) for p in before]
        signature = inspect.Signature([*before[:cut], *options, *before[cut:]])
        widened.__signature__ = signature  # type: ignore[attr-defined]
        widened.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
        del widened.__wrapped__  # or its signature would be taken
        return widened

    return widen


@dataclass(frozen=True)
class TaskData:
    """A task with its data and a tokenizer: everything between a file and a batch."""

    task: Task
    source: Source
    processor: Any
    options: TaskOptions

    def examples(self, split: str, count: int = 0, seed: int = 0) -> Examples:
        """A part of the data, or a random sample of it."""
        rows = self.task.load(self.source, split, self.processor, self.options.max_length)
        return rows.sample(count, seed) if count else rows

    def batches(self, examples: Examples) -> list[dict[str, Any]]:
        """Batches that know which example is in which row."""
        return list(examples.batches(self.options.batch_size))

    def inputs(self, examples: Examples) -> list[dict[str, Any]]:
        """Batches as the model takes them."""
        from headprune.scoring.job import model_inputs

        return [model_inputs(batch) for batch in self.batches(examples)]


def _task_folder(task: str, data_dir: Path | None) -> Path:
    """`DIR/task` if it is there, else DIR itself."""
    root = data_dir or (Path(os.environ["HEADPRUNE_DATA"]) if os.environ.get("HEADPRUNE_DATA") else None)
    if root is None:
        raise DataError("Where is the data? Give its folder with --data-dir, or set HEADPRUNE_DATA.")
    if not root.is_dir():
        raise DataError(f"The data folder '{root}' does not exist.")
    return root / task if (root / task).is_dir() else root


def load_processor(task: Task, name: str) -> Any:
    """The tokenizer or image processor that comes with a model."""
    import transformers

    if not task.processor_class:
        return None
    quiet_transformers()
    try:
        processor = getattr(transformers, task.processor_class).from_pretrained(name)
    except (OSError, ValueError, KeyError, ImportError) as error:
        kind = "tokenizer" if task.processor_class == "AutoTokenizer" else "image processor"
        raise DataError(f"'{name}' has no {kind} ({error}). Save one into the model's folder.") from error
    if task.processor_class == "AutoTokenizer":
        processor.padding_side = "right"
        if processor.pad_token is None:
            processor.pad_token = processor.eos_token  # padded positions are masked and have no label
    return processor


def described(evaluation: Evaluation) -> dict[str, Any]:
    """A score with its interval, for JSON."""
    interval = evaluation.interval()
    loss = float(evaluation.losses.mean())
    return {
        "metric": evaluation.metric.name,
        "score": evaluation.score,
        "interval": [interval.low, interval.high],
        "level": interval.level,
        "examples": len(evaluation.rows),
        "loss": loss if loss == loss else None,
    }
