"""`headprune run`: a table or figure of a paper, from one command."""

from __future__ import annotations

from headprune.cli.options import command, run_job
from headprune.jobs.options.run import RunOptions


@command(RunOptions)
def run(options: RunOptions, json: bool) -> None:
    """Repeat a table or figure of a paper; an interrupted run goes on where it stopped."""
    run_job("run", options, json)
