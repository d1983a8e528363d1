"""Typed values to and from JSON: a file is read into a dataclass, or the first field that does not fit is told."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from headprune.errors import FileFormatError

T = TypeVar("T")
_Reader = Callable[[Any], Any]
_REST = "rest"
_LARGEST = 2**63  # whole numbers are below it: they can be divided, and counted with by every library
_NOT_FINITE = {"inf": float("inf"), "-inf": float("-inf"), "nan": float("nan")}  # as texts: JSON has no words for them


class FieldError(FileFormatError):
    """A field that is not what was expected: where it is (`dev.score`), what was found, what was expected."""

    def __init__(self, field: str, found: str, expected: str) -> None:
        super().__init__(f"{field or 'the whole'} is {found}; expected {expected}.")
        self.field, self.found, self.expected = field, found, expected


def rest() -> Any:
    """A field of a dataclass for whatever else its table holds: `facts: Mapping[str, object] = rest()`."""
    return field(default_factory=dict, metadata={_REST: True})


def to_plain(value: object) -> Any:
    """Dataclasses as tables by field, tuples as lists, paths as texts."""
    if is_dataclass(value) and not isinstance(value, type):
        found = {one.name: to_plain(getattr(value, one.name)) for one in fields(value)}
        more = [found.pop(one.name) for one in fields(value) if _REST in one.metadata]
        return {**more[0], **found} if more else found
    if isinstance(value, Mapping):
        return {str(name): to_plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(inner) for inner in value]
    return str(value) if isinstance(value, Path) else value


def from_plain(kind: type[T], value: object) -> T:
    """What `to_plain` gave, as the type it was: a FieldError names the first field that is of another. Fields that the
    type does not have are left out; those with a default may be missing."""
    reader: _Reader = _reader(cast(Any, kind))
    return cast(T, reader(value))


def prepare(*kinds: object) -> None:
    """Look at the annotations of types now: the first file is then read without compiling anything."""
    for kind in kinds:
        _reader(kind)


@functools.cache
def _reader(kind: object) -> _Reader:
    origin, inner = get_origin(kind), get_args(kind)
    if origin is not None and hasattr(kind, "__metadata__"):
        return _reader(inner[0])
    if origin in (Union, types.UnionType):
        return _optional(inner)
    if origin is Literal:
        return _checked(lambda value: value in inner, " or ".join(map(repr, inner)))
    if origin in (list, tuple, Sequence):
        return _sequence(origin, inner)
    if origin in (dict, Mapping):
        return _table(inner[1])
    if is_dataclass(kind):
        return _record(kind)
    return _PLAIN[kind]


def _checked(fits: Callable[[Any], bool], expected: str, made: _Reader = lambda value: value) -> _Reader:
    def read(value: object) -> Any:
        if not fits(value):
            raise FieldError("", repr(value)[:80], expected)
        return made(value)

    return read


_PLAIN: dict[Any, _Reader] = {
    Any: lambda value: value,
    object: lambda value: value,
    str: _checked(lambda value: type(value) is str, "a text"),
    int: _checked(lambda value: type(value) is int and -_LARGEST < value < _LARGEST, "a whole number below 2**63"),
    bool: _checked(lambda value: type(value) is bool, "true or false"),
    float: _checked(
        lambda value: (
            type(value) is float
            or (type(value) is int and abs(value) < 2**1023)
            or (type(value) is str and value in _NOT_FINITE)
        ),
        "a number",
        lambda value: _NOT_FINITE[value] if type(value) is str else float(value),
    ),
    Path: _checked(lambda value: type(value) is str, "a path", Path),
}


def _optional(kinds: tuple[object, ...]) -> _Reader:
    readers = [_reader(kind) for kind in kinds if kind is not type(None)]
    nothing = type(None) in kinds

    def read(value: object) -> Any:
        if value is None and nothing:
            return None
        for reader in readers[:-1]:
            try:
                return reader(value)
            except FieldError:
                continue
        return readers[-1](value)

    return read


def _sequence(origin: object, inner: tuple[object, ...]) -> _Reader:
    made = list if origin is list else tuple
    alike = origin is not tuple or (len(inner) == 2 and inner[1] is Ellipsis)
    readers = [_reader(kind) for kind in inner if kind is not Ellipsis]
    quick: set[type] = {inner[0]} if alike and inner[0] in (float, str) else set()

    def read(value: object) -> Any:
        if type(value) is not list:
            raise FieldError("", repr(value)[:80], "a list")
        if alike and set(map(type, value)) <= quick:
            return made(value)
        if not alike and len(value) != len(readers):
            raise FieldError("", f"a list of {len(value)}", f"one of {len(readers)}")
        found = []
        for place, one in enumerate(value):
            try:
                found.append(readers[0 if alike else place](one))
            except FieldError as error:
                raise _inside(str(place), error) from None
        return made(found)

    return read


def _table(inner: object) -> _Reader:
    reader = _reader(inner)

    def read(value: object) -> Any:
        if type(value) is not dict:
            raise FieldError("", repr(value)[:80], "a table")
        found = {}
        for name, one in value.items():
            try:
                found[name] = reader(one)
            except FieldError as error:
                raise _inside(name, error) from None
        return found

    return read


def _record(kind: Any) -> _Reader:
    hints = get_type_hints(kind)
    others = [one.name for one in fields(kind) if _REST in one.metadata]
    parts = [
        (one.name, _reader(hints[one.name]), one.default is MISSING and one.default_factory is MISSING)
        for one in fields(kind)
        if one.init and one.name not in others
    ]
    named = {name for name, _, _ in parts}

    def read(value: Any) -> Any:
        if type(value) is not dict:
            raise FieldError("", repr(value)[:80], "a table")
        given: dict[str, Any] = {}
        for other in others:
            given[other] = {name: one for name, one in value.items() if name not in named}
        for name, reader, needed in parts:
            if name not in value:
                if needed:
                    raise FieldError(name, "missing", "it to be there")
                continue
            try:
                given[name] = reader(value[name])
            except FieldError as error:
                raise _inside(name, error) from None
        return kind(**given)

    return read


def _inside(name: str, error: FieldError) -> FieldError:
    return FieldError(f"{name[:80]}.{error.field}" if error.field else name[:80], error.found, error.expected)
