"""What `play` can be asked."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar

from headprune.errors import DataError
from headprune.jobs.options.base import Device, Model, Option, RemoteCode, Seed, TaskOptions


@dataclass(frozen=True, kw_only=True)
class PlayOptions:
    is_step: ClassVar[bool] = False  # of a preset
    model: Model
    data: TaskOptions = field(default_factory=lambda: TaskOptions(task=None))
    scores: Annotated[
        Path | None, Option("What heads are worth: scores.json of `headprune score`. Default: magnitude.", is_read=True)
    ] = None
    smaller: Annotated[
        list[Path] | None,
        Option(
            "For --page: folders that `headprune shrink` wrote, points of a second slider; repeatable.", is_read=True
        ),
    ] = None
    sentence: Annotated[str | None, Option("What the page begins with.")] = None
    port: Annotated[int, Option("Port on 127.0.0.1; 0 takes a free one.", least=0)] = 0
    out: Annotated[Path, Option("Models are saved in folders below this one, and nowhere else.")] = Path("play-out")
    force: Annotated[
        bool, Option("Save below --out although something else made that folder. No model is replaced.")
    ] = False
    page: Annotated[
        Path | None, Option("Write a page that needs no server, with a task's examples, to this .html file instead.")
    ] = None
    split: Annotated[str, Option("For --page: the part of the data that is asked.")] = "dev"
    examples: Annotated[int, Option("For --page: a random part of so many examples; 0 is all.")] = 400
    steps: Annotated[int, Option("For --page: points of the slider over heads, each measured.", least=1)] = 12
    title: Annotated[str | None, Option("Of the page.")] = None
    seed: Seed = 0
    device: Device = "cpu"
    trust_remote_code: RemoteCode = False

    def check(self) -> None:
        """What can be told without a model or data."""
        if self.page is None:
            return
        if self.page.suffix not in (".html", ".htm"):
            raise DataError(f"--page ends in '{self.page.suffix}'; expected .html.")
        if self.data.task is None:
            raise DataError(
                "--page shows what the model answers to examples: give --task, with --data-dir or --dataset."
            )
