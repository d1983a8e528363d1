"""Results on a task's data, which their files tell together with the task's settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

from headprune.typed_json import from_plain, rest, to_plain


@dataclass(frozen=True, kw_only=True)
class TaskResult:
    """`settings` are what changes the score of the same model on the same data. They stand among the other fields in
    JSON, which leaves out fields that are None by default, and those that are for people alone (`unstored`)."""

    settings: Mapping[str, object] = rest()
    version: ClassVar[int] = 1
    unstored: ClassVar[tuple[str, ...]] = ()

    def to_dict(self) -> dict[str, Any]:
        stored: dict[str, Any] = to_plain(self)
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in self.unstored or (value is None and field.default is None):
                del stored[field.name]
        return stored

    @classmethod
    def from_dict(cls, content: object) -> Self:
        """What `to_dict` made, after JSON; the first field of another kind is told."""
        return from_plain(cls, content)
