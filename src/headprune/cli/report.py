"""`headprune report`: stored results as one page."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import Annotated

import typer

from headprune.cli.options import Json
from headprune.errors import DataError


def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders that `headprune run --out` wrote.")],
    out: Annotated[
        list[Path], typer.Option("--out", "-o", help="The page: .html, or .md for a model card; repeatable.")
    ],
    preset: Annotated[list[str] | None, typer.Option(help="Only this preset of those run there; repeatable.")] = None,
    title: Annotated[str | None, typer.Option(help="Of the page; default the names of the presets.")] = None,
    json: Json = False,
) -> None:
    """Show results as one page that needs no network: heads, curves, sizes, and the papers' values beside ours."""
    from headprune.files import write_text
    from headprune.lab.report import gather, html_page, markdown_page

    kinds = {".html": html_page, ".htm": html_page, ".md": markdown_page}
    wrong = [path for path in out if path.suffix not in kinds]
    if wrong:
        raise DataError(f"'{wrong[0]}' ends in '{wrong[0].suffix}'; expected .html or .md.")
    found = gather(runs, title, presets=preset or ())
    for path in out:
        write_text(path, kinds[path.suffix](found))
    if json:
        presets = [
            {
                "preset": told.run.preset.name, "scale": told.run.scale, "inputs": dict(told.run.inputs),
                "values": [value.to_dict() for value in told.values],
                "claims": [claim.to_dict() for claim in told.claims],
            }
            for told in found.told
        ]  # fmt: skip
        result = {
            "title": found.title, "summary": found.summary(), "trials": len(found.records), "failed": len(found.failed),
            "presets": presets, "pages": [str(path) for path in out],
        }  # fmt: skip
        typer.echo(json_module.dumps(result, indent=1))
        return
    typer.echo(" ".join(found.summary()))
    typer.echo(f"{len(found.records)} trials; {', '.join(map(str, out))}")
