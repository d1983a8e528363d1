"""`headprune doctor`: what is installed here, and does it work?"""

from __future__ import annotations

from headprune.cli.options import command, run_job
from headprune.jobs.options.doctor import DoctorOptions


@command(DoctorOptions)
def doctor(options: DoctorOptions, json: bool) -> None:
    """Show versions, devices and extras, and try everything that pruning needs on a tiny model."""
    run_job("doctor", options, json)
