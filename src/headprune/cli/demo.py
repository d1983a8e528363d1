"""`headprune demo`: the whole job on a small real model and real reviews, with no network."""

from __future__ import annotations

from headprune.cli.options import command, run_job
from headprune.jobs.options.demo import DemoOptions


@command(DemoOptions)
def demo(options: DemoOptions, json: bool) -> None:
    """Fine-tune MiniLM on film reviews, score its heads, draw the curve, prune, save, reload, compare and time."""
    run_job("demo", options, json)
