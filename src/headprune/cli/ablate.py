"""`headprune ablate`: the metric without each head, with honest error bars."""

from __future__ import annotations

from headprune.cli.options import command, run_job
from headprune.jobs.options.ablate import AblateOptions


@command(AblateOptions)
def ablate(options: AblateOptions, json: bool) -> None:
    """Mask every head in turn and tell which changes of the metric are more than chance."""
    run_job("ablate", options, json)
