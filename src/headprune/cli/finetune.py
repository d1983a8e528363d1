"""`headprune finetune`: a model for a task to start from, or a pruned one to repair."""

from __future__ import annotations

from headprune.cli.options import command, run_job
from headprune.jobs.options.finetune import FinetuneOptions


@command(FinetuneOptions)
def finetune(options: FinetuneOptions, json: bool) -> None:
    """Train a model through transformers' Trainer; an interrupted run goes on where it stopped."""
    run_job("finetune", options, json)
