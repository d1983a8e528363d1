"""Options that several commands share, as one value: a dataclass whose fields become the commands' options."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Any, get_type_hints

from headprune.cli.command import _parameter
from headprune.jobs.options.base import Option, option_fields
from headprune.jobs.options.task import TaskOptions


def takes(options: type[Any], parameter: str, **defaults: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command whose `parameter` is of the class `options` each of its fields as an option, before --seed."""

    def widen(command: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(options, include_extras=True)
        if any(isinstance(one, Option) for hint in hints.values() for one in getattr(hint, "__metadata__", ())):
            hints = {field.name: _parameter(field).annotation for field in option_fields(options)}
        own = get_type_hints(command, include_extras=True)
        added = [
            inspect.Parameter(
                field.name, inspect.Parameter.KEYWORD_ONLY, annotation=hints[field.name],
                default=defaults.get(field.name, field.default),
            )
            for field in fields(options)
        ]  # fmt: skip

        @functools.wraps(command)
        def widened(**given: Any) -> None:
            typed = {field.name: given.pop(field.name) for field in fields(options)}
            command(**given, **{parameter: options(**typed)})

        before = [p for p in inspect.signature(command).parameters.values() if p.name != parameter]
        cut = next((i for i, p in enumerate(before) if p.name == "seed"), len(before))
        before = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=own[p.name]) for p in before]
        signature = inspect.Signature([*before[:cut], *added, *before[cut:]])
        widened.__signature__ = signature  # type: ignore[attr-defined]
        widened.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
        del widened.__wrapped__  # or its signature would be taken
        return widened

    return widen


def takes_task(**defaults: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command whose parameter `data` is TaskOptions all of these as options of its own."""
    return takes(TaskOptions, "data", **defaults)
