"""`headprune explain`: the page of an error, without a network."""

from __future__ import annotations

import inspect
import json as json_module
from typing import Annotated

import typer

from headprune import errors
from headprune.cli.options import Json
from headprune.errors import HeadpruneError, UnknownNameError
from headprune.registry import hint


def explain(
    error: Annotated[str | None, typer.Argument(help="An error by name, as MaskError; without one, all.")] = None,
    json: Json = False,
) -> None:
    """Say what an error means, where it usually comes from, and what to do."""
    pages = error_pages()
    if error is not None and error not in pages:
        raise UnknownNameError(f"headprune has no error '{error}'. {hint(error, pages)}")
    if json:
        typer.echo(json_module.dumps(pages if error is None else {error: pages[error]}, indent=1))
    elif error is None:
        width = max(map(len, pages))
        for name, page in pages.items():
            typer.echo(f"{name:{width}}  {page.splitlines()[0]}")
    else:
        typer.echo(f"{error}\n\n{pages[error]}")


def error_pages() -> dict[str, str]:
    """Every error of ours with its page, in the order of the tree."""
    found = {name: thing for name, thing in vars(errors).items() if inspect.isclass(thing)}
    return {name: inspect.cleandoc(e.__doc__ or "") for name, e in found.items() if issubclass(e, HeadpruneError)}
