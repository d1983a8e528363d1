"""Trials and their keys."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headprune as hp
from headprune.lab.experiments import trial as trial_room
from headprune.lab.experiments.trial import Trial
from headprune.lab.experiments.work import Work, works

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


def test_keys_do_not_change_while_the_results_do_not():
    """Stored results would be lost: a known trial keeps its key, and one of 0.1.0 is found under the one it had."""
    params = {"share": 0.5, "names": ["a", "b"]}
    assert Trial(work="echo", params=params, seed=3).key() == "ad68233d39363efa"
    assert Trial(work="echo", params=params, seed=3, version="0.1.0").key() == "8e8bbf7ec16b4221"


def test_a_key_says_which_version_of_the_results_it_belongs_to(monkeypatch):
    """When the figures of a work change, or those of all, its trials are others; those of other works stay."""
    trials = [Trial(work=name) for name in ("echo", "spin")]
    monkeypatch.setitem(works._items, "echo", Work(works["echo"].run, version=2))
    later = [Trial(work=name) for name in ("echo", "spin")]
    assert [old.key() == new.key() for old, new in zip(trials, later, strict=True)] == [False, True]
    assert [trial.made_by for trial in (*trials, *later)] == ["results 2.1", "", "", ""]
    monkeypatch.setattr(trial_room, "RESULTS", 3)
    assert Trial(work="spin").key() != trials[1].key()
    assert Trial.from_dict(trials[1].to_dict()).made_by == "results 2.1"


def test_a_trial_of_0_1_0_is_told_from_a_new_one():
    """Its file has no version."""
    content = Trial(work="echo").to_dict()
    del content["version"]
    old = Trial.from_dict(content)
    assert (old.version, old.made_by) == ("0.1.0", "0.1.0")
    assert old.to_dict() == content
    assert old.key() != Trial(work="echo").key()


def test_parameters_that_are_no_json_are_refused():
    """And nobody changes them from outside."""
    with pytest.raises(hp.HeadpruneError, match="plain JSON"):
        Trial(work="echo", params={"a": float("nan")})
    given = {"list": [1]}
    trial = Trial(work="echo", params=given)
    key = trial.key()
    given["list"].append(2)
    assert trial.key() == key
