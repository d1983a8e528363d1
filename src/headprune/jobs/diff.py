"""`diff`: how much fine-tuning moved each head."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, cast

from headprune.checkpoint.load_model import load_model
from headprune.checkpoint.out_folder import open_out
from headprune.files import write_text
from headprune.jobs.job import SILENT, Progress
from headprune.jobs.options.diff import DiffOptions
from headprune.lab.analysis.pictures import heat_map, write_picture
from headprune.lab.analysis.weight_change import Reading, WeightChanges, weight_changes
from headprune.structure.find import find_heads


@dataclass(frozen=True)
class Diffed:
    """What changed between two models."""

    before: str
    after: str
    changes: WeightChanges
    page: Path | None = None
    version: ClassVar[int] = 1

    def to_dict(self) -> dict[str, Any]:
        return {"before": self.before, "after": self.after, **self.changes.to_dict()}

    def message(self) -> str:
        means = self.changes.site_means().values()
        return (
            f"mean change by site from {min(means):.2e} to {max(means):.2e}: they differ by up to "
            f"{self.changes.largest_gap():.0%}; {self.page}"
        )


def diff(options: DiffOptions, progress: Progress = SILENT) -> Diffed:
    """Mean change of W_q, W_k and W_v by head between two models (Budhraja et al., Figure 2)."""
    out = open_out("diff", options).path
    with progress.steps(3) as step:
        step("loading the models")
        before, after = (load_model(name, options.device) for name in (options.before, options.after))
        step("comparing")
        changes = weight_changes(before, after, reading=cast(Reading, options.reading))
    result = Diffed(options.before, options.after, changes)
    write_text(out / "diff.json", json.dumps(result.to_dict(), indent=1))
    drawn = heat_map(find_heads(before), changes.overall, title="change of W_q, W_k, W_v by head", name="change")
    return Diffed(options.before, options.after, changes, write_picture(drawn, out / "diff", options.picture))
