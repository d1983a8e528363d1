"""Tasks by name, and a task opened for a model: everything between the options of a job and a batch."""

from __future__ import annotations

import copy
import functools
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import transformers
from torch import nn
from transformers import AutoConfig

from headprune.checkpoint.load_model import cannot_load, load_model, quiet_transformers
from headprune.errors import DataError, MissingExtraError
from headprune.jobs.options.base import TaskOptions
from headprune.registry import Registry, hint
from headprune.scoring.context import model_inputs
from headprune.tasks.classification import GLUE, Column, TextTask
from headprune.tasks.encoded import EncodedTask
from headprune.tasks.images import ImageTask
from headprune.tasks.language import LanguageTask, MaskedLanguageTask
from headprune.tasks.metrics import metrics
from headprune.tasks.questions import QuestionTask
from headprune.tasks.tables import Source
from headprune.tasks.tags import TagTask, splits_words
from headprune.tasks.task import Examples, Labels, Task
from headprune.tasks.text import StreamTask
from headprune.tasks.translation import TranslationTask
from headprune.tasks.translation.beam_search import SEARCHES
from headprune.tasks.translation.pairs import Languages
from headprune.types import Config, Processor, Tokenizer

tasks: Registry[Callable[[], Task]] = Registry("task")  # name -> what makes it; users may add theirs
for _kind in (
    TagTask, QuestionTask, ImageTask, LanguageTask, MaskedLanguageTask, EncodedTask, TranslationTask, StreamTask,
):  # fmt: skip
    tasks.add(_kind().name)(_kind)
for _glue in GLUE.values():
    tasks.add(_glue.name)(functools.partial(copy.copy, _glue))


def task_names() -> list[str]:
    return list(tasks)


def find_task(
    name: str,
    *,
    text: str | None = None,
    pair: str | None = None,
    label: str | None = None,
    metric: str | None = None,
) -> Task:
    """A task by its name, or any other name with its columns; what is given overrides what is known."""
    if name not in tasks and text is None:
        raise DataError(f"No task called '{name}'. {hint(name, tasks)} For your own texts, name the text column.")
    task = tasks[name]() if name in tasks else _own_texts(name, metric)
    columns = {"text": text, "pair": pair, "label": label}
    fields = _COLUMNS.get(type(task), {})
    given = {fields.get(option, ""): column for option, column in columns.items() if column is not None}
    if "" in given:
        options = ", ".join(f"--{option}" for option in fields) or "none"
        raise DataError(f"The task {name} does not take these columns. Options for its columns: {options}.")
    changes: dict[str, Any] = {
        field: column if field == "column" else _column(column) for field, column in given.items()
    }
    if metric is not None:
        changes["metric"] = metrics[metric]
    return replace(task, **changes)


_COLUMNS: dict[type[Task], dict[str, str]] = {
    TextTask: {"text": "first", "pair": "second", "label": "label"},
    TagTask: {"text": "words", "label": "tags"},
    ImageTask: {"text": "image", "label": "label"},
    LanguageTask: {"text": "column"},
    MaskedLanguageTask: {"text": "column"},
    QuestionTask: {},
    EncodedTask: {},
    TranslationTask: {},
    StreamTask: {},
}


def _own_texts(name: str, metric: str | None) -> TextTask:
    is_regression = metric in ("pearson", "spearman")
    labels = Labels(1) if is_regression else Labels(0)
    return TextTask(name=name, metric=metrics["pearson" if is_regression else "accuracy"], first=(), labels=labels)


def _column(text: str) -> Column:
    """`3` is a column number, anything else a name."""
    return (int(text),) if text.isdecimal() else (text,)


def load_processor(task: Task, name: str) -> Processor | None:
    """The tokenizer or image processor that comes with a model."""
    if not task.processor_class:
        return None
    quiet_transformers()
    try:
        processor = getattr(transformers, task.processor_class).from_pretrained(name)
    except ImportError as error:
        raise MissingExtraError(f"The tokenizer of '{name}' needs a package that is not installed: {error}") from error
    except Exception as error:  # none there, or one that is damaged: whatever its reader stumbles over
        kind = "tokenizer" if task.processor_class == "AutoTokenizer" else "image processor"
        raise DataError(
            f"'{name}' has no {kind} that can be read ({error}). Save one into the model's folder."
        ) from error
    if task.processor_class != "AutoTokenizer":
        return processor
    return ready_tokenizer(processor, takes_words=task.takes_words)


def ready_tokenizer(tokenizer: Tokenizer, *, takes_words: bool) -> Tokenizer:
    """Pads on the right, with something; for texts that come as lists of words, keeps the words apart.

    Only for these: elsewhere another way of putting spaces would change what the model reads.
    """
    if takes_words and not splits_words(tokenizer):  # byte-level tokenizers would read "the film" as "thefilm"
        again = transformers.AutoTokenizer.from_pretrained(tokenizer.name_or_path, add_prefix_space=True)
        tokenizer = again if splits_words(again) else tokenizer
    tokenizer.padding_side = "right"
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token  # padded positions are masked and have no label
    return tokenizer


def match_padding_(model: nn.Module, processor: Processor | None) -> nn.Module:
    """Classifiers on decoders look for the last token before the padding, so the model must know it."""
    config, token = getattr(model, "config", None), getattr(processor, "pad_token_id", None)
    if config is not None and getattr(config, "pad_token_id", None) is None and token is not None:
        config.pad_token_id = token
    return model


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
    if options.files():
        return task, Source(splits=options.files())
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
        raise DataError(
            "Where is the data? Give its folder with --data-dir, its files with --train-file and --dev-file, or set "
            "HEADPRUNE_DATA."
        )
    if root.is_file():
        return root  # a text in one file
    if not root.is_dir():
        raise DataError(f"The data folder '{root}' does not exist.")
    return root / task if (root / task).is_dir() else root
