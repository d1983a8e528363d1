"""`headprune gates`: let training decide which heads stay."""

from __future__ import annotations

from headprune.cli.options import command, run_job
from headprune.jobs.options.gates import GatesOptions


@command(GatesOptions)
def gates(options: GatesOptions, json: bool) -> None:
    """Train gates on the heads of a converged model, prune what they close, and save it. Runs resume."""
    run_job("gates", options, json)
