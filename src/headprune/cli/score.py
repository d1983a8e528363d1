"""`headprune score`: what each head is worth."""

from __future__ import annotations

from headprune.cli.options import command, run_job
from headprune.jobs.options.score import ScoreOptions


@command(ScoreOptions)
def score(options: ScoreOptions, json: bool) -> None:
    """Score every head on a task's data. An interrupted run goes on where it stopped."""
    run_job("score", options, json)
