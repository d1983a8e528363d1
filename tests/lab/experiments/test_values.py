"""Values read from results."""

from __future__ import annotations


def test_a_value_that_is_not_there_is_told_and_spoils_no_other():
    """A path that leads nowhere, a number that is none."""
    from headprune.lab.experiments.values import number_at

    result = {"a": [{"b": 1}, {"b": None}]}
    assert number_at(result, "a/0/b") == 1.0
    assert number_at(result, "a/-2/b") == 1.0
    assert "no 'c' on the way" in number_at(result, "a/0/c")
    assert "not a number" in number_at(result, "a/1/b")
