"""`inspect`: where the heads of a model are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from headprune.checkpoint.load_model import load_model
from headprune.checkpoint.out_folder import open_out
from headprune.files import labelled, write_text
from headprune.heads import HeadMap
from headprune.heads.picture import head_picture, head_text
from headprune.jobs.job import SILENT, Progress
from headprune.jobs.options.inspect import InspectOptions
from headprune.structure.find import find_heads


@dataclass(frozen=True)
class Inspected:
    """The heads of a model."""

    heads: HeadMap
    every: HeadMap | None = None  # with neurons, for people
    version: ClassVar[int] = 1

    def to_dict(self) -> dict[str, Any]:
        return labelled("heads", self.heads.to_dict())

    def message(self) -> str:
        return f"{self.heads}\n\n{head_text(self.every or self.heads)}"


def inspect(options: InspectOptions, progress: Progress = SILENT) -> Inspected:
    """Find every attention block of a model and its heads."""
    if options.out is not None:
        open_out("inspect", options)
    with progress.steps(2) as step:
        step("loading the model")
        model = load_model(options.model, options.device, trust_remote_code=options.trust_remote_code)
        step("finding heads")
        heads, every = find_heads(model), find_heads(model, neurons=True)
    if options.out is not None:
        write_text(options.out / "heads.json", heads.to_json())
        write_text(options.out / "heads.svg", head_picture(heads))
    return Inspected(heads, every)
