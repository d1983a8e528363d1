"""Results in the trackers that people have."""

from __future__ import annotations

import importlib.util

import pytest

import headprune as hp
from headprune.lab.experiments.store import Store
from headprune.lab.experiments.sweep import Inline, run_sweep
from headprune.lab.experiments.trackers import export
from headprune.lab.experiments.trial import Trial


@pytest.fixture
def store(tmp_path):
    trials = [Trial(work="echo", params={"options": {"rate, half": n + 0.5, "name": "x"}}, seed=n) for n in range(3)]
    run_sweep(trials, Store(tmp_path / "runs"), Inline())
    return Store(tmp_path / "runs")


def test_tensorboard_has_every_number_once(store, tmp_path):
    """A run a trial, with its parameters; what was sent is not sent again."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert export(store, "tensorboard", tmp_path / "board") == 3
    assert export(store, "tensorboard", tmp_path / "board") == 0
    for record in store:
        read = EventAccumulator(str(tmp_path / "board" / record.trial.key()))
        read.Reload()
        (point,) = read.Scalars("result.params.options.rate_ half")
        assert point.value == record.trial.seed + 0.5
        assert read.Scalars("result.seed")[0].value == record.trial.seed
    assert list((tmp_path / "board").rglob("hparams.yml"))


def test_a_tracker_that_is_not_there_is_told(store, tmp_path):
    """By name, with what to install."""
    with pytest.raises(hp.HeadpruneError, match="Did you mean 'tensorboard'"):
        export(store, "tensorbord", tmp_path)
    if importlib.util.find_spec("wandb") is None:
        with pytest.raises(hp.HeadpruneError, match="pip install wandb"):
            export(store, "wandb", tmp_path)
