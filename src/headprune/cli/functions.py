"""`headprune functions`: what each head does."""

from __future__ import annotations

from headprune.cli.options import command, run_job
from headprune.jobs.options.functions import FunctionsOptions


@command(FunctionsOptions)
def functions(options: FunctionsOptions, json: bool) -> None:
    """Tell positional, syntactic and rare-token heads (Voita et al., section 5)."""
    run_job("functions", options, json)
