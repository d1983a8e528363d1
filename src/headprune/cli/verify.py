"""`headprune verify`: does it work with my model? Every type of the installed transformers, checked."""

from __future__ import annotations

import json as json_module
import os
import shutil
from pathlib import Path
from typing import Annotated, Any

import typer

from headprune.checkpoint.load_model import check_writable
from headprune.cli.options import Json, progress
from headprune.errors import HeadpruneError, UnknownNameError
from headprune.registry import hint


def verify(
    types: Annotated[
        list[str] | None, typer.Argument(metavar="types...", help="Model types, as a config names them: bert, llama.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every type of the installed transformers.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder for families.json and families.md; what is finished there is kept.")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes at a time; default: as many as cores.")] = None,
    limit: Annotated[float, typer.Option(min=1, help="Seconds that one type may take.")] = 240.0,
    json: Json = False,
) -> None:
    """Build a tiny model of each type and check that pruning it is exact."""
    if every == bool(types):
        raise HeadpruneError("Name model types (headprune verify bert llama), or ask for --all of them.")
    if out is not None:
        check_writable(out)
    with progress(1) as step:
        step("reading the list of types")
        import transformers
        from tools.families.build_model import model_types
        from tools.families.families import Family, read_families, write_families
        from tools.families.processes import verify_types

        known = model_types()
    for name in types or ():
        if name not in known:
            raise UnknownNameError(
                f"transformers {transformers.__version__} has no model type '{name}'. {hint(name, known)}"
            )
    wanted = known if every else list(types or ())
    unfinished = out / ".families" if out is not None else None
    done: dict[str, Any] = read_families(unfinished, transformers.__version__) if unfinished is not None else {}
    left = [name for name in wanted if name not in done]
    with progress(len(left)) as step:

        def finished(name: str, family: Family) -> None:
            done[name] = family
            step(f"{name}: {family.status}")
            if unfinished is not None:
                write_families(unfinished, done, transformers.__version__)

        verify_types(left, workers=workers or os.cpu_count() or 1, limit=limit, done=finished)
    found = {name: done[name] for name in sorted(wanted)}
    if out is not None and unfinished is not None:
        from tools.families.page import families_page

        from headprune.files import write_text

        write_families(out, found, transformers.__version__)
        write_text(out / "families.md", families_page(found, transformers.__version__))
        shutil.rmtree(unfinished, ignore_errors=True)
    _tell(found, json, transformers.__version__)


def _tell(found: dict[str, Any], json: bool, version: str) -> None:
    from tools.families.families import counted, to_dict

    if json:
        typer.echo(json_module.dumps(to_dict(found, version), indent=1))
        return
    for name, family in found.items():
        if len(found) <= 20 or family.status == "failed":
            told = f": {family.reason}" if family.reason else f" ({', '.join(family.sites)})"
            typer.echo(f"{name}: {family.status}{told}")
    counts = {status: count for status, count in counted(found).items() if count}
    typer.echo(f"{len(found)} types: " + ", ".join(f"{count} {status}" for status, count in counts.items()))
