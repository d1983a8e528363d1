"""Typed values to and from JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from headprune.typed_json import FieldError, from_plain, rest, to_plain


@dataclass(frozen=True)
class Inner:
    score: float
    kept: Mapping[str, list[int]]


@dataclass(frozen=True)
class Outer:
    name: str
    inner: Inner
    pair: tuple[int, int]
    many: tuple[Inner, ...] = ()
    mode: Literal["a", "b"] = "a"
    limit: int | None = None
    out: Path = Path()


@dataclass(frozen=True)
class Flat:
    score: float
    facts: Mapping[str, object] = rest()


GOOD = Outer("x", Inner(0.5, {"encoder.0": [0, 2]}), (1, 2), (Inner(1.0, {}),), "b", 3, Path("a/b"))


def test_a_value_comes_back_as_it_was():
    """Through the text of a file, with tuples, paths and tables."""
    assert from_plain(Outer, json.loads(json.dumps(to_plain(GOOD)))) == GOOD


def test_whatever_else_a_table_holds_is_kept():
    """In a field of its own, and flat in the file."""
    plain = {"score": 0.5, "newer": [1], "odd": {"a": None}}
    assert from_plain(Flat, plain) == Flat(0.5, {"newer": [1], "odd": {"a": None}})
    assert to_plain(from_plain(Flat, plain)) == plain


def test_what_may_be_missing_may_be_missing_and_more_is_no_harm():
    """Newer files have more fields, older ones fewer."""
    plain = {"name": "x", "inner": {"score": 1, "kept": {}}, "pair": [1, 2], "newer": True}
    assert from_plain(Outer, plain) == Outer("x", Inner(1.0, {}), (1, 2))


@pytest.mark.parametrize(
    ("change", "field", "told"),
    [
        ({"name": 3}, "name", "name is 3; expected a text."),
        ({"inner": {"score": "much", "kept": {}}}, "inner.score", "inner.score is 'much'; expected a number."),
        ({"inner": {"kept": {}}}, "inner.score", "inner.score is missing; expected it to be there."),
        ({"pair": [1]}, "pair", "pair is a list of 1; expected one of 2."),
        ({"pair": []}, "pair", "pair is a list of 0; expected one of 2."),
        ({"pair": [1, 10**400]}, "pair.1", "expected a whole number below 2**63."),
        ({"many": [{"score": 1.0, "kept": {"e": [2**63]}}]}, "many.0.kept.e.0", "below 2**63."),
        ({"pair": [1, True]}, "pair.1", "pair.1 is True; expected a whole number below 2**63."),
        ({"many": [{"score": 1.0, "kept": {"e": [0.5]}}]}, "many.0.kept.e.0", "expected a whole number below 2**63."),
        ({"mode": "c"}, "mode", "mode is 'c'; expected 'a' or 'b'."),
        ({"limit": "3"}, "limit", "limit is '3'; expected a whole number below 2**63."),
    ],
)
def test_the_first_field_that_does_not_fit_is_told(change, field, told):
    """Where it is, what was found and what was expected."""
    with pytest.raises(FieldError) as error:
        from_plain(Outer, {**to_plain(GOOD), **change})
    assert error.value.field == field
    assert told in str(error.value)


def test_numbers_without_end_are_words():
    """JSON has none for them."""
    assert from_plain(float, "inf") == math.inf
    assert math.isnan(from_plain(list[float], ["nan", 1])[0])
