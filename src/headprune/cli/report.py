"""`headprune report`: stored results as one page."""

from __future__ import annotations

from headprune.cli.options import command, run_job
from headprune.jobs.options.report import ReportOptions


@command(ReportOptions)
def report(options: ReportOptions, json: bool) -> None:
    """Show results as one page that needs no network: heads, curves, sizes, and the papers' values beside ours."""
    run_job("report", options, json)
