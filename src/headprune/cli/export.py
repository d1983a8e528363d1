"""`headprune export`: a pruned model for places where headprune is not installed."""

from __future__ import annotations

from headprune.cli.options import command, run_job
from headprune.jobs.options.export import ExportOptions


@command(ExportOptions)
def export(options: ExportOptions, json: bool) -> None:
    """Write a pruned model so that it loads without headprune."""
    run_job("export", options, json)
