"""Trials and their keys."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headprune as hp
from headprune.lab.experiments.trial import Trial

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**6), 10**6)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(params=st.dictionaries(st.text(), JSON, max_size=4), seed=st.integers(0, 99))
def test_a_trial_has_the_same_key_after_a_file(params, seed):
    """Through JSON and back, in any order of names."""
    trial = Trial(work="echo", params=params, seed=seed)
    again = Trial.from_dict(json.loads(json.dumps(trial.to_dict())))
    turned = Trial(work="echo", params=dict(reversed(list(params.items()))), seed=seed)
    assert trial.key() == again.key() == turned.key()


def test_whatever_decides_the_result_changes_the_key():
    """Work, parameters, seed, needs; not the names for people."""
    base = Trial(work="echo", params={"a": 1})
    others = [
        Trial(work="other", params={"a": 1}), Trial(work="echo", params={"a": 2}),
        Trial(work="echo", params={"a": 1.5}), Trial(work="echo", params={"a": 1}, seed=1),
        Trial(work="echo", params={"a": 1}, needs={"b": "0" * 16}),
    ]  # fmt: skip
    assert len({trial.key() for trial in (base, *others)}) == 6
    assert Trial(work="echo", params={"a": 1}, label="x", step="y").key() == base.key()


def test_the_same_work_under_other_names_is_the_same_trial():
    """Names of needs, inputs and parameters are a preset's own affair; what they stand for is not."""

    def made(need, given, key="a" * 16, data="b" * 16):
        options = {"model": f"{{{need}}}/out", "data": f"{{{given}}}"}
        params = {"options": options, "inputs": {given: data}, "values": {need: 1}}
        return Trial(work="echo", params=params, needs={need: key}).key()

    assert made("cut", "text") == made("pruned", "books")
    assert made("cut", "text") != made("cut", "text", key="c" * 16)
    assert made("cut", "text") != made("cut", "text", data="c" * 16)


def test_keys_do_not_change_between_versions():
    """Stored results would be lost: a known trial keeps its key."""
    assert Trial(work="echo", params={"share": 0.5, "names": ["a", "b"]}, seed=3).key() == "8e8bbf7ec16b4221"


def test_parameters_that_are_no_json_are_refused():
    """And nobody changes them from outside."""
    with pytest.raises(hp.HeadpruneError, match="plain JSON"):
        Trial(work="echo", params={"a": float("nan")})
    given = {"list": [1]}
    trial = Trial(work="echo", params=given)
    key = trial.key()
    given["list"].append(2)
    assert trial.key() == key
