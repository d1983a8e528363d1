"""What the commands share: options, amounts, progress."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from headprune.cli.command import state as state
from headprune.errors import MaskError, UnsupportedModelError

if TYPE_CHECKING:
    from torch import nn

    from headprune.heads import HeadMap


Model = Annotated[str, typer.Argument(help="A model: a folder, or a name on the hub.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of text for people.")]
Seed = Annotated[int, typer.Option(help="Seed of random choices.")]
Device = Annotated[str, typer.Option(help="Where to run: cpu, cuda, mps, …")]
Picture = Annotated[Literal["html", "png", "svg"], typer.Option(help="html (values on hover), png or svg.")]
Parts = Annotated[
    Literal["heads", "neurons", "both"],
    typer.Option(help="What may go: attention heads, neurons of feed-forward parts, or both."),
]
RemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run code that comes with the model. Off unless you ask for it.")
]


def find_parts(model: nn.Module, parts: str) -> tuple[HeadMap, HeadMap]:
    """Everything that a mask of this model must name, and what of it may go."""
    from headprune.structure import find_heads

    every = find_heads(model, neurons=parts != "heads")
    found = every.neurons if parts == "neurons" else every
    if not found:
        why = f" ({every.skipped[0].path}: {every.skipped[0].reason})" if every.skipped else ""
        raise UnsupportedModelError(f"No {parts} were found in {type(model).__name__}{why}.")
    return every, found


def amount(text: str) -> float | int:
    """`50%` is a share, `72` a count."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(%?)", text.strip())
    if not match or (not match[2] and "." in match[1]):
        raise MaskError(f"'{text}' is not an amount of heads. Expected a share like 50% or a count like 72.")
    return float(match[1]) / 100 if match[2] else int(match[1])


@contextmanager
def progress(total: int) -> Iterator[Any]:
    """A progress bar on stderr, gone when done; call the result with the name of each step as it begins."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)
        begun = False

        def step(name: str) -> None:
            nonlocal begun
            bar.update(task, description=name, advance=1 if begun else 0)
            begun = True

        yield step
