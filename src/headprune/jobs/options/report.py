"""What `report` can be asked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from headprune.errors import DataError
from headprune.jobs.options.base import Option

PAGES = (".html", ".htm", ".md")


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    is_step: ClassVar[bool] = False  # of a preset
    runs: Annotated[
        list[Path],
        Option(
            "Folders that commands wrote with --out: run, score, curve, ablate, prune, shrink, evaluate.",
            is_argument=True,
            is_read=True,
        ),
    ]
    out: Annotated[list[Path], Option("The page: .html, or .md for a model card; repeatable.", flags=("--out", "-o"))]
    preset: Annotated[list[str] | None, Option("Only this preset of those run there; repeatable.")] = None
    title: Annotated[str | None, Option("Of the page; default the names of the presets.")] = None

    def check(self) -> None:
        wrong = [path for path in self.out if path.suffix not in PAGES]
        if wrong:
            raise DataError(f"'{wrong[0]}' ends in '{wrong[0].suffix}'; expected .html or .md.")
