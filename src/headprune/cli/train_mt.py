"""`headprune train-mt`: a translation model from parallel text."""

from __future__ import annotations

from headprune.cli.options import command, run_job
from headprune.jobs.options.train_mt import TrainMtOptions


@command(TrainMtOptions)
def train_mt(options: TrainMtOptions, json: bool) -> None:
    """Train a Transformer on pairs of sentences; an interrupted run goes on where it stopped."""
    run_job("train-mt", options, json)
