"""A task opened for a model: everything between the options of a job and a batch."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn
from transformers import AutoConfig

from headprune.checkpoint.load_model import cannot_load, load_model, quiet_transformers
from headprune.errors import DataError
from headprune.jobs.options.task import TaskOptions
from headprune.registry import hint
from headprune.scoring.context import model_inputs
from headprune.tasks.known import find_task
from headprune.tasks.processor import load_processor, match_padding_
from headprune.tasks.sources import Source
from headprune.tasks.task import Examples, Task
from headprune.tasks.translation import TranslationTask
from headprune.tasks.translation.beam_search import SEARCHES
from headprune.tasks.translation.pairs import Languages
from headprune.types import Config, Processor


@dataclass(frozen=True)
class TaskData:
    """A task with its data and a tokenizer."""

    task: Task
    source: Source
    processor: Processor
    options: TaskOptions
    config: Config

    def longest(self) -> int:
        """The most tokens that the model can take."""
        known = (
            getattr(self.config, "max_position_embeddings", None),
            getattr(self.processor, "model_max_length", None),
        )
        return min((limit for limit in known if isinstance(limit, int) and limit > 0), default=self.options.max_length)

    def load_model(self, name: str, device: str) -> nn.Module:
        """The model, which pads as its tokenizer does, if it is one for the task."""
        model = match_padding_(load_model(name, device), self.processor)
        head = self.task.model_class.removeprefix("AutoModel")
        if head.endswith(("Classification", "Answering", "MaskedLM")) and head not in type(model).__name__:
            raise DataError(
                f"'{name}' is a {type(model).__name__}; {self.task.name} needs a model {head}. Fine-tune it first: "
                "headprune finetune."
            )
        if head == "Seq2SeqLM" and not model.can_generate():  # type: ignore[operator]
            raise DataError(
                f"'{name}' is a {type(model).__name__}, which cannot generate: it has no language-model head."
            )
        return model

    def examples(self, split: str, count: int = 0, seed: int = 0) -> Examples:
        """A part of the data, or a random sample of it."""
        rows = self.task.load(self.source, split, self.processor, min(self.options.max_length, self.longest()))
        return rows.sample(count, seed) if count else rows

    def batches(self, examples: Examples) -> list[dict[str, Any]]:
        """Batches that know which example is in which row."""
        return list(examples.batches(self.options.batch_size))

    def inputs(self, examples: Examples) -> list[dict[str, Any]]:
        """Batches as the model takes them."""
        return [model_inputs(batch) for batch in self.batches(examples)]


def open_task(options: TaskOptions, model: str) -> TaskData:
    """The task as a trained model does it."""
    task, source = task_and_source(options)
    config, processor = _config(model), load_processor(task, model)
    return TaskData(task.for_model(config).for_processor(processor, config), source, processor, options, config)


def open_new_task(options: TaskOptions, model: str) -> TaskData:
    """The task for a model that is to learn it: its classes are those of the training data."""
    task, source = task_and_source(options)
    config, processor = _config(model), load_processor(task, model)
    learned = task.learned_from(source).ordered_as(config).for_processor(processor, config)
    return TaskData(learned, source, processor, options, config)


def task_and_source(options: TaskOptions) -> tuple[Task, Source]:
    """The task, and where its examples are."""
    options.check()
    assert options.task is not None, "checked above"
    task = find_task(options.task, text=options.text, pair=options.pair, label=options.label, metric=options.metric)
    task = _as_translated(task, options)
    if options.dataset is not None:
        return task, Source(dataset=options.dataset)
    return task, Source(folder=_task_folder(options.task, options.data_dir))


def _as_translated(task: Task, options: TaskOptions) -> Task:
    """With what is said about translation; it means nothing to other tasks."""
    if not isinstance(task, TranslationTask):
        given = {"languages": options.languages, "beams": options.beams, "length-penalty": options.length_penalty}
        given |= {"prefix": options.prefix or None}
        wrong = ", ".join(f"--{name}" for name, value in given.items() if value is not None)
        if wrong:
            raise DataError(f"{wrong}: for translation, not for {task.name}.")
        return task
    if options.search not in SEARCHES:
        raise DataError(f"No search called '{options.search}'. {hint(options.search, SEARCHES)}")
    search = SEARCHES[options.search]
    if options.beams is not None:
        search = replace(search, beams=options.beams)
    if options.length_penalty is not None:
        search = replace(search, length_penalty=options.length_penalty)
    languages = Languages.parse(options.languages) if options.languages is not None else None
    return replace(task, languages=languages, search=search, prefix=options.prefix)


def _config(model: str) -> Config:
    quiet_transformers()
    try:
        config: Config = AutoConfig.from_pretrained(model)
    except (OSError, ValueError, KeyError) as error:
        raise cannot_load(model, error) from error
    return config


def _task_folder(task: str, data_dir: Path | None) -> Path:
    """`DIR/task` if it is there, else DIR itself."""
    root = data_dir or (Path(os.environ["HEADPRUNE_DATA"]) if os.environ.get("HEADPRUNE_DATA") else None)
    if root is None:
        raise DataError("Where is the data? Give its folder with --data-dir, or set HEADPRUNE_DATA.")
    if root.is_file():
        return root  # a text in one file
    if not root.is_dir():
        raise DataError(f"The data folder '{root}' does not exist.")
    return root / task if (root / task).is_dir() else root
