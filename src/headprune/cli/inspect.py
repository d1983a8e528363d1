"""`headprune inspect`: where the heads of a model are."""

from __future__ import annotations

from headprune.cli.options import command, run_job
from headprune.jobs.options.inspect import InspectOptions


@command(InspectOptions)
def inspect(options: InspectOptions, json: bool) -> None:
    """Show every attention block of a model and its heads."""
    run_job("inspect", options, json)
