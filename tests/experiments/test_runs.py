"""What was run in a folder is known there, and what a paper says is held against it."""

from __future__ import annotations

import json

import pytest

import headprune as hp
from headprune.lab.experiments.claims import verdicts
from headprune.lab.experiments.library import shared_steps
from headprune.lab.experiments.preset_file import read_preset
from headprune.lab.experiments.runs import note_runs, plan_run, read_runs
from headprune.lab.experiments.store import Store
from headprune.lab.experiments.sweep import Inline, run_sweep
from headprune.lab.experiments.values import Observed

PRESET = """
name = "{name}"
study = "none"
line = "none"
what = "says what it was told"

[small]
seeds = [1, 2]

[[small.steps]]
name = "{step}"
work = "echo"
each = {{ number = [1, 4] }}
options = {{ number = "{{number}}" }}

[[small.values]]
name = "one"
step = "{step}"
path = "params/options/number"
where = {{ number = 1 }}

[[small.values]]
name = "four"
step = "{step}"
path = "params/options/number"
where = {{ number = 4 }}

[[small.claims]]
text = "four is more than one by two"
value = "four"
is = "above"
against = "one"
by = 2
"""


def preset(name="mine", step="say", extra=""):
    return read_preset(PRESET.format(name=name, step=step) + extra, f"{name}.toml", shared_steps())


def ran(store, *presets, seeds=None):
    planned = [plan_run(one, "small", {}, seeds) for one in presets]
    note_runs(store, [run for run, _ in planned])
    run_sweep([trial for _, trials in planned for trial in trials], store, Inline())


def test_a_folder_knows_what_it_is_for(tmp_path):
    """Every preset once, as it was, with the trials of all its seeds; a damaged note is told."""
    store = Store(tmp_path)
    ran(store, preset("a"))
    ran(store, preset("a"), seeds=[3])
    ran(store, preset("b", "tell"))
    first, second = read_runs(store)
    assert (first.preset.name, second.preset.name) == ("a", "b")
    assert [record.trial.seed for record in first.records(store)] == [1, 1, 2, 2, 3, 3]
    # The same work under two names is one trial, and each preset finds it under its own.
    assert len(store) == 6
    assert {record.trial.step for record in second.records(store)} == {"tell"}
    assert [value.found for value in second.values(second.records(store))] == [(1.0, 1.0), (4.0, 4.0)]
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(hp.HeadpruneError, match="cannot be read"):
        read_runs(store)
    (tmp_path / "run.json").write_text(json.dumps({"schema": 99, "runs": []}))
    with pytest.raises(hp.HeadpruneError, match="newer headprune"):
        read_runs(store)


def test_a_preset_that_cannot_be_read_any_more_is_left_out_and_not_lost(tmp_path):
    """Its neighbours are as they were, and so is its note."""
    store = Store(tmp_path)
    ran(store, preset("a"), preset("b", "tell"))
    notes = json.loads((tmp_path / "run.json").read_text())
    notes["runs"][0]["source"] = notes["runs"][0]["source"].replace('work = "echo"', 'chain = "gone"')
    (tmp_path / "run.json").write_text(json.dumps(notes))
    assert [run.preset.name for run in read_runs(store)] == ["b"]
    ran(store, preset("b", "tell"), seeds=[3])
    kept = json.loads((tmp_path / "run.json").read_text())["runs"]
    assert kept[0] == notes["runs"][0]
    assert [run.asked for run in read_runs(store)] == [((), (3,))]


def test_steps_that_changed_are_other_work(tmp_path):
    """The text of a preset may stay while a shared step changes: old and new trials are not mixed."""
    store = Store(tmp_path)
    ran(store, preset("a"))
    notes = json.loads((tmp_path / "run.json").read_text())
    notes["runs"][0]["steps"] = "of an older version"
    (tmp_path / "run.json").write_text(json.dumps(notes))
    ran(store, preset("a"))
    assert len(read_runs(store)) == 2


@pytest.mark.parametrize(("part", "value"), [("asked", [["x"]]), ("trials", {"k": {"label": "x"}}), ("steps", 3)])
def test_a_damaged_note_is_told(tmp_path, part, value):
    """Whatever part of it."""
    store = Store(tmp_path)
    ran(store, preset("a"))
    notes = json.loads((tmp_path / "run.json").read_text())
    notes["runs"][0][part] = value
    (tmp_path / "run.json").write_text(json.dumps(notes))
    with pytest.raises(hp.HeadpruneError, match="cannot be read"):
        read_runs(store)


def test_a_claim_needs_three_seeds(tmp_path):
    """Two are told as what was seen; three with an interval on the right side are a finding."""
    store = Store(tmp_path)
    for seeds, finding, told in (([1, 2], False, "agrees, 2 seeds: no claim"), ([1, 2, 3], True, "agrees")):
        ran(store, preset(), seeds=seeds)
        (run,) = read_runs(store)
        (claim,) = run.claims(run.values(run.records(store)))
        assert (claim.is_finding, claim.told()) == (finding, told)
        assert claim.gaps == (3.0,) * len(seeds)
        assert claim.expected == "'four' above 'one' + 2"


ONE = Observed("one", None, (1.0, 1.1, 0.9), (1, 2, 3), planned=3)


@pytest.mark.parametrize(
    ("relation", "by", "found", "verdict"),
    [
        ("above", 0.0, (1.5, 1.6, 1.4), "agrees"),
        ("above", 1.0, (1.5, 1.6, 1.4), "disagrees"),
        ("above", 0.5, (1.5, 1.7, 1.3), "open"),  # the gap is 0.5 ± 0.2
        ("above", -1.0, (0.5, 0.6, 0.4), "agrees"),  # a loss of less than 1 is allowed
        ("below", 0.2, (0.5, 0.6, 0.4), "agrees"),
        ("below", 0.0, (1.5, 1.6, 1.4), "disagrees"),
        ("within", 0.1, (1.0, 1.1, 0.9), "agrees"),
        ("within", 0.1, (1.5, 1.6, 1.4), "disagrees"),
        ("within", 0.1, (1.5, 0.6, 1.4), "open"),
    ],
)
def test_claims_can_come_out_false_or_open(relation, by, found, verdict):
    """The whole interval of the gap must lie on one side."""
    extra = f"""
[[small.claims]]
text = "x"
value = "four"
is = "{relation}"
against = "one"
by = {by}
"""
    four = Observed("four", None, found, (1, 2, 3), planned=3)
    assert verdicts(preset(extra=extra), "small", [ONE, four])[-1].verdict == verdict


def test_seeds_are_paired_and_one_model_serves_all():
    """Gaps are within seeds; a value that is there once is compared with every seed's."""
    four = Observed("four", None, (4.0, 5.0), (2, 3), planned=3)
    assert verdicts(preset(), "small", [ONE, four])[0].gaps == pytest.approx((2.9, 4.1))
    single = Observed("one", None, (1.0,), (1,), planned=1)
    assert verdicts(preset(), "small", [single, four])[0].gaps == (3.0, 4.0)
    once = Observed("four", None, (4.0,), (1,), planned=1)
    assert verdicts(preset(), "small", [ONE, once])[0].gaps == pytest.approx((3.0, 2.9, 3.1))
    half_done = Observed("one", None, (1.0,), (2,), planned=3)  # two seeds of it are still to come
    assert verdicts(preset(), "small", [half_done, four])[0].gaps == (3.0,)
    assert verdicts(preset(), "small", [Observed("one", None, ()), four])[0].verdict == "not done"


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('is = "above"', 'is = "abov"', r"mine.toml, line \d+: is = 'abov'. Did you mean 'above'"),
        ('against = "one"', 'against = "on"', r"line \d+: 'on' is 0 values"),
        ('against = "one"', "", "another value .against. or with a number"),
        ("by = 2", 'by = "2"', "expected a number"),
    ],
)
def test_a_wrong_claim_is_told_with_its_line(old, new, told):
    """As for any other field."""
    text = PRESET.format(name="mine", step="say").replace(old, new)
    with pytest.raises(hp.HeadpruneError, match=told):
        read_preset(text, "mine.toml", shared_steps())


def test_the_spread_over_samplings_is_a_share_of_the_mean():
    """Budhraja et al. tell 0.668 % and 0.778 % of theirs."""
    assert Observed("x", None, (0.90, 0.91, 0.92), (1, 2, 3)).spread == pytest.approx(0.01 / 0.91)
    assert Observed("x", None, (0.90, 0.91), (1, 2)).spread is None
