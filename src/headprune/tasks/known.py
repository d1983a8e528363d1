"""Tasks by name: GLUE's, and one for every other kind of data."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from headprune.errors import DataError
from headprune.registry import Registry, hint
from headprune.tasks.classification import GLUE, Column, TextTask
from headprune.tasks.encoded import EncodedTask
from headprune.tasks.images import ImageTask
from headprune.tasks.labels import Labels
from headprune.tasks.language import LanguageTask, MaskedLanguageTask
from headprune.tasks.metrics import metrics
from headprune.tasks.questions import QuestionTask
from headprune.tasks.tags import TagTask
from headprune.tasks.task import Task
from headprune.tasks.text import StreamTask
from headprune.tasks.translation import TranslationTask

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
