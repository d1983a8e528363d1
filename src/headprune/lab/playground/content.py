"""What the page shows, as data: JSON beside the page, and inside it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from headprune import files
from headprune.errors import FileFormatError
from headprune.heads import HeadMap, HeadMask
from headprune.typed_json import from_plain, to_plain

KIND = "playground"  # of the JSON file
Answers = Literal["classes", "words", "none"]


@dataclass(frozen=True, kw_only=True)
class SiteRow:
    """A row of the map. `heads` counts those of the original model, `kept` are those that the whole model has."""

    id: str
    heads: int
    kept: tuple[int, ...]
    is_neurons: bool = False


@dataclass(frozen=True, kw_only=True)
class Worth:
    """What each head is worth, by site; larger is worth more. `changes` is of the task's metric without the head."""

    name: str
    values: Mapping[str, tuple[float | None, ...]]
    changes: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)
    functions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # "encoder.3:7" -> what it does


@dataclass(frozen=True, kw_only=True)
class Measured:
    """How many times as fast; of many rounds with their spread, and the same model against itself. A single pass has
    neither."""

    speedup: float
    low: float | None = None
    high: float | None = None
    control: float | None = None


@dataclass(frozen=True, kw_only=True)
class Point:
    """A model on the way from the whole one to a smaller one, and what it answers to every example."""

    label: str
    heads: int
    neurons: int
    parameters: int
    macs: int
    kept: Mapping[str, str]  # site -> "1011…" by head; neurons by their number: "512"
    score: float | None = None
    interval: tuple[float, float] | None = None
    speed: Measured | None = None
    price: str = ""  # what `shrink` says that it costs
    answers: tuple[float, ...] = ()  # of classes: the share of the likeliest
    chosen: tuple[int, ...] = ()  # of classes: the likeliest
    words: tuple[tuple[tuple[str, float], ...], ...] = ()  # of a language model: the likeliest next words
    command: str = ""  # what makes it


@dataclass(frozen=True, kw_only=True)
class Way:
    """A slider: models from the whole one down, by heads or by a budget."""

    name: str
    axis: str  # what the slider counts
    points: tuple[Point, ...]
    metric: str = ""  # what its scores are, where that is not the page's metric


@dataclass(frozen=True, kw_only=True)
class Example:
    """One that no head was chosen by and nothing was repaired by."""

    text: str
    label: int | None = None
    sampled: bool = False  # one of a random sample, which is shown whatever happens to it


@dataclass(frozen=True, kw_only=True)
class Sentence:
    """What every head looks at on a sentence. Maps are bytes (heads x tokens x tokens), in base64, 255 being all."""

    tokens: tuple[str, ...]
    maps: Mapping[str, str]
    without: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)  # change of the share, a head off
    of: str = ""  # whose share that is


@dataclass(frozen=True, kw_only=True)
class Content:
    """Everything on the page."""

    title: str
    about: str
    sites: tuple[SiteRow, ...]
    worth: Worth | None = None
    ways: tuple[Way, ...] = ()
    answers: Answers = "none"
    labels: tuple[str, ...] = ()
    metric: str = ""
    less_is_better: bool = False  # as of a perplexity
    data: str = ""  # which examples
    examples: tuple[Example, ...] = ()
    sentences: tuple[Sentence, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        plain: dict[str, Any] = to_plain(self)
        return files.labelled(KIND, plain)

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), separators=(",", ":")) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Content:
        content = files.load(KIND, text)
        try:
            return from_plain(cls, {name: value for name, value in content.items() if name in cls.__annotations__})
        except (TypeError, ValueError) as error:
            raise FileFormatError(f"A playground file is damaged: {error}.") from error


def rows_of(heads: HeadMap) -> tuple[SiteRow, ...]:
    return tuple(
        SiteRow(id=site.id, heads=site.original_num_heads, kept=() if site.is_neurons else site.kept,
                is_neurons=site.is_neurons)
        for site in heads
    )  # fmt: skip


def kept_of(heads: HeadMap, mask: HeadMask) -> dict[str, str]:
    """A mask as the page reads it."""
    found = {}
    for site in heads:
        kept = set(mask.kept(site.id))
        marks = "".join("1" if head in kept else "0" for head in range(site.original_num_heads))
        found[site.id] = str(len(kept)) if site.is_neurons else marks
    return found
