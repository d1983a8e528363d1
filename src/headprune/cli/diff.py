"""`headprune diff`: how much fine-tuning moved each head."""

from __future__ import annotations

from headprune.cli.options import command, run_job
from headprune.jobs.options.diff import DiffOptions


@command(DiffOptions)
def diff(options: DiffOptions, json: bool) -> None:
    """Show the mean change of W_q, W_k and W_v by head between two models (Budhraja et al., Figure 2)."""
    run_job("diff", options, json)
