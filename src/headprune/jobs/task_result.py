"""Results on a task's data, which their files tell together with the task's settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

from headprune.errors import FileFormatError
from headprune.typed_json import from_plain, to_plain


@dataclass(frozen=True, kw_only=True)
class TaskResult:
    """`settings` are what changes the score of the same model on the same data. They stand among the other fields in
    JSON, which leaves out fields that are None by default, and those that are for people alone (`unstored`)."""

    settings: Mapping[str, object]
    version: ClassVar[int] = 1
    unstored: ClassVar[tuple[str, ...]] = ()

    def to_dict(self) -> dict[str, Any]:
        stored = dict(to_plain(self.settings))
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name not in ("settings", *self.unstored) and not (value is None and field.default is None):
                stored[field.name] = value.to_dict() if isinstance(value, TaskResult) else to_plain(value)
        return stored

    @classmethod
    def from_dict(cls, content: object) -> Self:
        """What `to_dict` made, after JSON; the first field of another kind is told."""
        if not isinstance(content, dict):
            raise FileFormatError(f"Found {type(content).__name__}; expected the table of a {cls.__name__}.")
        names = {field.name for field in fields(cls)}
        own = {name: value for name, value in content.items() if name in names}
        return from_plain(cls, {**own, "settings": {n: value for n, value in content.items() if n not in names}})
