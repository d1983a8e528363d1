"""Hours told before they are spent, from times of trials that were run."""

from __future__ import annotations

import json

import pytest

from headprune.lab.experiments.estimate import estimate, family, known_times, likeness, measured
from headprune.lab.experiments.expand import trials_of
from headprune.lab.experiments.library import all_presets
from headprune.lab.experiments.store import Record
from headprune.lab.experiments.trial import Trial
from tests.command import invoked


def trial(seed=1, needs=(), **options):
    params = {"command": "finetune", "arguments": ["{cut}"], "options": {"task": "sst2", **options, "seed": seed}}
    return Trial(work="command", params=params, seed=seed, needs=dict(needs), step="tuned", label=f"seed {seed}")


def record(of, seconds):
    return Record(trial=of, status="done", cpu_seconds=seconds, seconds=99.0)


def test_trials_that_differ_by_what_is_drawn_take_the_same_time():
    """Seeds, patterns and the names of needed steps do not count; epochs do."""
    assert likeness(trial(epochs=2)) == likeness(trial(2, epochs=2, pattern="top:1"))
    assert likeness(trial(needs={"cut": "a" * 16})) == likeness(trial(needs={"cut": "b" * 16}))
    assert likeness(trial(epochs=2)) != likeness(trial(epochs=3))


def test_what_was_never_run_is_taken_for_its_kind_by_its_amount():
    """Two epochs took twice as long as one would; another trial of five is told from that, and that it was not it."""
    times = measured([record(trial(epochs=2), 100.0), record(trial(2, epochs=2), 140.0)])
    assert family(trial(epochs=5)) == ("finetune sst2 by epochs", 5.0)
    found = estimate({"mine": [trial(epochs=2), trial(epochs=5)]}, set(), 2, times)
    assert (found.like, found.kind_only, found.unknown) == (1, 1, ())
    assert found.hours * 3600 == pytest.approx(120 + 5 * 60)
    assert found.wall * 3600 == pytest.approx(300)  # the longest cannot be shared
    nothing = estimate({"mine": [trial()]}, set(), 2, {"alike": {}, "families": {}})
    assert nothing.unknown == ("tuned",)


def test_what_is_done_and_what_is_shared_is_not_counted_again():
    """A trial of two presets counts for the first."""
    times = measured([record(trial(epochs=2), 3600.0)])
    one, other = trial(epochs=2), trial(2, epochs=2)
    found = estimate({"a": [one, other], "b": [one]}, {other.key()}, 1, times)
    assert (found.trials, found.left, found.hours, dict(found.seconds)) == (2, 1, 1.0, {"a": 3600.0, "b": 0.0})


def test_all_presets_with_three_seeds_take_at_most_fifteen_hours_on_two_cores():
    """By the times that come with headprune; nothing is unknown."""
    planned = {
        preset.name: trials_of(preset, "small", dict.fromkeys(preset.scale("small").inputs, ""), [1, 2, 3])
        for preset in all_presets()
    }
    found = estimate(planned, set(), 2, known_times())
    assert found.unknown == ()
    assert 0 < found.wall <= 15


def test_the_command_needs_no_data_for_it():
    """And tells the preset, the hours, and how much of them was measured."""
    told = json.loads(invoked("run", "michel-table-3", "--seeds", "1,2,3", "--estimate", "--json").stdout)
    assert told["trials"] == told["left"] == 6
    assert told["hours"] == pytest.approx(told["core_hours"])
