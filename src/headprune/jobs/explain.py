"""`explain`: the page of an error, without a network."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from headprune import errors
from headprune.errors import HeadpruneError, UnknownNameError
from headprune.jobs.job import SILENT, Progress
from headprune.jobs.options.explain import ExplainOptions
from headprune.registry import hint


@dataclass(frozen=True)
class Explained:
    """Pages of errors by name: of one, or of all."""

    pages: Mapping[str, str]
    is_list: bool
    version: ClassVar[int] = 1

    def to_dict(self) -> dict[str, str]:
        return dict(self.pages)

    def message(self) -> str:
        width = max(map(len, self.pages))
        lines = [
            f"{name:{width}}  {page.splitlines()[0]}" if self.is_list else f"{name}\n\n{page}"
            for name, page in self.pages.items()
        ]
        return "\n".join(lines)


def explain(options: ExplainOptions, progress: Progress = SILENT) -> Explained:
    """What an error means, where it usually comes from, and what to do."""
    pages, error = error_pages(), options.error
    if error is None:
        return Explained(pages, is_list=True)
    if error not in pages:
        raise UnknownNameError(f"headprune has no error '{error}'. {hint(error, pages)}")
    return Explained({error: pages[error]}, is_list=False)


def error_pages() -> dict[str, str]:
    """Every error of ours with its page, in the order of the tree."""
    found = {name: thing for name, thing in vars(errors).items() if inspect.isclass(thing)}
    return {name: inspect.cleandoc(e.__doc__ or "") for name, e in found.items() if issubclass(e, HeadpruneError)}
