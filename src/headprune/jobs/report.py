"""`report`: stored results as one page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from headprune.files import write_text
from headprune.jobs.job import SILENT, Progress
from headprune.jobs.options.report import ReportOptions
from headprune.lab.experiments.store import Store
from headprune.lab.playground import Content, page
from headprune.lab.report import Report, gather, html_page, markdown_page
from headprune.lab.report.ordinary import markdown_facts, ordinary_content
from headprune.typed_json import to_plain


@dataclass(frozen=True)
class Reported:
    """What was gathered, and the pages that show it."""

    report: Report
    pages: tuple[Path, ...]
    version: ClassVar[int] = 1

    def to_dict(self) -> dict[str, Any]:
        found = self.report
        presets = [
            {
                "preset": told.run.preset.name, "scale": told.run.scale, "made_by": told.run.made_by,
                "inputs": dict(told.run.inputs),
                "values": [value.to_dict() for value in told.values],
                "claims": [claim.to_dict() for claim in told.claims],
            }
            for told in found.told
        ]  # fmt: skip
        return {
            "title": found.title, "summary": found.summary(), "trials": len(found.records), "failed": len(found.failed),
            "presets": presets, "problems": to_plain(found.problems), "pages": [str(path) for path in self.pages],
        }  # fmt: skip

    def message(self) -> str:
        pages = ", ".join(map(str, self.pages))
        return f"{' '.join(self.report.summary())}\n{len(self.report.records)} trials; {pages}"


@dataclass(frozen=True)
class ReportedFolder:
    """What single commands left, and the pages that show it."""

    content: Content
    pages: tuple[Path, ...]
    version: ClassVar[int] = 1

    def to_dict(self) -> dict[str, Any]:
        return {
            "title": self.content.title, "facts": dict(self.content.facts), "pages": [str(path) for path in self.pages],
            "points": {way.name: len(way.points) for way in self.content.ways},
        }  # fmt: skip

    def message(self) -> str:
        told = [f"{name}: {fact}" for name, fact in self.content.facts]
        return "\n".join([*told, f"{len(told)} results; {', '.join(map(str, self.pages))}"])


def report(options: ReportOptions, progress: Progress = SILENT) -> Reported | ReportedFolder:
    """Show results as one page that needs no network: of runs with the papers' values beside ours, of single commands
    as a page to play with."""
    options.check()
    if not any(map(len, map(Store, options.runs))) and not options.preset:
        content = ordinary_content(options.runs, options.title)
        for path in options.out:
            write_text(path, markdown_facts(content) if path.suffix == ".md" else page(content))
        return ReportedFolder(content, tuple(options.out))
    found = gather(options.runs, options.title, presets=options.preset or ())
    for path in options.out:
        write_text(path, markdown_page(found) if path.suffix == ".md" else html_page(found))
    return Reported(found, tuple(options.out))
