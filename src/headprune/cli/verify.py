"""`headprune verify`: does pruning work with my model?"""

from __future__ import annotations

from headprune.cli.options import command, run_job
from headprune.jobs.options.verify import VerifyOptions


@command(VerifyOptions)
def verify(options: VerifyOptions, json: bool) -> None:
    """Check on your own model that pruning is exact, saves, loads, generates and trains."""
    run_job("verify", options, json)
