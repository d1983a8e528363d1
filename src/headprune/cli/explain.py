"""`headprune explain`: the page of an error, without a network."""

from __future__ import annotations

from headprune.cli.options import command, run_job
from headprune.jobs.options.explain import ExplainOptions


@command(ExplainOptions)
def explain(options: ExplainOptions, json: bool) -> None:
    """Say what an error means, where it usually comes from, and what to do."""
    run_job("explain", options, json)
