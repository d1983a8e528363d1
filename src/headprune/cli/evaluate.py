"""`headprune evaluate`: the score of a model on a part of a task's data, alone or against another model."""

from __future__ import annotations

from headprune.cli.options import command, run_job
from headprune.jobs.options.evaluate import EvaluateOptions


@command(EvaluateOptions)
def evaluate(options: EvaluateOptions, json: bool) -> None:
    """Score a model, with an interval; for translation, write the translations too."""
    run_job("evaluate", options, json)
