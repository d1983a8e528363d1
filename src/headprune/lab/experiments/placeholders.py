"""Names in braces that stand for something else: inputs, folders of steps, parameters."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

_PLACE = re.compile(r"\{([A-Za-z][\w-]*)\}")


def names_in(values: Sequence[object]) -> set[str]:
    """All names in braces, in texts and lists of texts."""
    return {name for text in texts_of(values) for name in _PLACE.findall(text)}


def texts_of(values: Sequence[object]) -> Iterator[str]:
    for value in values:
        if isinstance(value, str):
            yield value
        elif isinstance(value, list):
            yield from texts_of(value)


def filled(value: object, fixed: Mapping[str, object]) -> Any:
    """Placeholders of seed and parameters replaced; those of inputs and steps stay until the trial is run."""
    if isinstance(value, list):
        return [filled(inner, fixed) for inner in value]
    if not isinstance(value, str):
        return value
    whole = _PLACE.fullmatch(value)
    if whole and whole[1] in fixed:
        return fixed[whole[1]]
    return _PLACE.sub(lambda place: str(fixed[place[1]]) if place[1] in fixed else place[0], value)


def resolved(value: object, places: Mapping[str, Path]) -> Any:
    """The remaining placeholders as paths."""
    if isinstance(value, dict):
        return {name: resolved(inner, places) for name, inner in value.items()}
    if isinstance(value, list):
        return [resolved(inner, places) for inner in value]
    if not isinstance(value, str):
        return value
    return _PLACE.sub(lambda place: str(places[place[1]]) if place[1] in places else place[0], value)
