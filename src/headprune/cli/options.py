"""What the commands share: options, amounts, progress."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal

import typer

from headprune.cli.command import state as state

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
