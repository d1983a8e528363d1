"""`score`: what each head is worth."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from torch import nn

from headprune.checkpoint.load_model import load_model
from headprune.checkpoint.out_folder import open_out
from headprune.files import labelled, write_text
from headprune.heads import HeadScores
from headprune.heads.stored import read_scores
from headprune.jobs.job import SILENT, Progress
from headprune.jobs.options.score import ScoreOptions
from headprune.lab.analysis.agreement import Agreement, agreement
from headprune.lab.analysis.pictures import heat_map, write_picture
from headprune.scoring import scorers
from headprune.scoring.resumable import score_in_parts
from headprune.structure.find import find_parts
from headprune.tasks.data import open_task


@dataclass(frozen=True)
class ScoredLikewise:
    """Other scores of the same heads, and how alike they are."""

    name: str
    agreement: Agreement

    def to_dict(self) -> dict[str, Any]:
        overlap = {f"{share:.0%}": value for share, value in self.agreement.overlap.items()}
        return {"with": self.name, **asdict(self.agreement.correlation), "overlap": overlap}

    def message(self, method: str) -> str:
        shares = ", ".join(f"{part:.0%} of those kept at {kept:.0%}" for kept, part in self.agreement.overlap.items())
        alike = self.agreement.correlation
        return f"{method} and {self.name}: Spearman {alike.spearman:.2f} (p {alike.spearman_p:.1e}); {shares}"


@dataclass(frozen=True)
class Scored:
    """Scores of the heads (or neurons) of a model; `HeadScores.from_dict` reads what is stored."""

    scores: HeadScores
    parts: str
    page: Path
    likewise: tuple[ScoredLikewise, ...] = ()
    version: ClassVar[int] = 1

    def to_dict(self) -> dict[str, Any]:
        return labelled("scores", self.scores.to_dict())

    def message(self) -> str:
        method = self.scores.method
        ranked = sorted(
            (value, f"{site}:{head}")
            for site, line in self.scores.normalized().items()
            for head, value in enumerate(line)
            if value is not None
        )
        low, high = ", ".join(name for _, name in ranked[:3]), ", ".join(name for _, name in ranked[::-1][:3])
        what = "heads and neurons" if self.parts == "both" else self.parts
        last = f"scored {len(ranked)} {what} by {method} on {self.scores.data}; lowest {low}; highest {high}"
        return "\n".join([*(other.message(method) for other in self.likewise), f"{last}; {self.page}"])


def score(options: ScoreOptions, progress: Progress = SILENT) -> Scored:
    """Score every head on a task's data. An interrupted run goes on where it stopped."""
    out = open_out("score", options).path
    others = [read_scores(path) for path in options.against or ()]
    model, batches, name = _subject(options)
    how = {"reduction": options.reduction} if options.reduction is not None else {}
    how |= {"loss": options.loss} if options.loss != "mean" else {}
    _, heads = find_parts(model, options.parts)
    with progress.steps(max(1, len(batches))) as step:
        scores = score_in_parts(
            model, batches, out / "unfinished", heads=heads, method=options.method, seed=options.seed, progress=step,
            name=name, **how,
        )  # fmt: skip
    write_text(out / "scores.json", scores.to_json())
    title = f"{options.method} on {scores.data}"
    drawn = heat_map(heads, scores.normalized(), title=title, name=options.method)
    page = write_picture(drawn, out / "scores", options.picture)
    likewise = tuple(
        ScoredLikewise(f"{other.method} on {other.data}", agreement(heads, scores, other)) for other in others
    )
    if likewise:
        write_text(out / "agreement.json", json.dumps([other.to_dict() for other in likewise], indent=1))
    return Scored(scores, options.parts, page, likewise)


def _subject(options: ScoreOptions) -> tuple[nn.Module, list[dict[str, Any]], str]:
    """The model, what it is scored on, and in words what that is. Methods that look at no data need none."""
    data = options.data
    somewhere = data.data_dir or data.dataset or data.files() or os.environ.get("HEADPRUNE_DATA")
    if options.method in scorers and scorers[options.method].data_free and not somewhere:
        return load_model(options.model, options.device), [], "no data"
    opened = open_task(data, options.model)
    rows = opened.examples(options.split, options.examples, options.seed)
    name = f"{data.task} {options.split}, {len(rows)} examples"
    return opened.load_model(options.model, options.device), opened.inputs(rows), name
