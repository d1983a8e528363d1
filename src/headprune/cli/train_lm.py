"""`headprune train-lm`: a language model with a memory from running text."""

from __future__ import annotations

from headprune.cli.options import command, run_job
from headprune.jobs.options.train_lm import TrainLmOptions


@command(TrainLmOptions)
def train_lm(options: TrainLmOptions, json: bool) -> None:
    """Train an All-attention or Transformer-XL language model; an interrupted run goes on where it stopped.

    --batch-size is the number of streams read side by side, --max-length that of tokens in a segment; 0 leaves both as
    the preset has them.
    """
    run_job("train-lm", options, json)
