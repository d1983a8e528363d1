"""`headprune prune`: remove heads and save the smaller model."""

from __future__ import annotations

from headprune.cli.options import command, run_job
from headprune.jobs.options.prune import PruneOptions


@command(PruneOptions)
def prune(options: PruneOptions, json: bool) -> None:
    """Remove heads, check that the model answers as if they were masked, and save it."""
    run_job("prune", options, json)
