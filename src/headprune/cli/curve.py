"""`headprune curve`: score against share pruned, in several orders."""

from __future__ import annotations

from headprune.cli.options import command, run_job
from headprune.jobs.options.curve import CurveOptions


@command(CurveOptions)
def curve(options: CurveOptions, json: bool) -> None:
    """Draw how the score falls as more heads go."""
    run_job("curve", options, json)
