"""`headprune bench leaderboard`: every way of pruning without training, cell by cell; goes on where it stopped."""

from __future__ import annotations

import json as json_module
import math
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headprune.cli.calibrating import Calibration
from headprune.cli.options import Json, progress
from headprune.cli.taskdata import TaskData, TaskOptions, padded_as
from headprune.errors import DataError, UnknownNameError

if TYPE_CHECKING:
    from headprune.heads import HeadMask
    from headprune.leaderboard import Spec

BOARD = Path("benchmarks/results/leaderboard.json")
LENGTHS = {"mrpc": 128, "wikitext2": 256}  # tokens an example; 64 elsewhere

bench = typer.Typer(help="Measure what headprune claims.", no_args_is_help=True)


@bench.callback()
def measure_claims() -> None:
    """Measure what headprune claims."""


@bench.command("leaderboard")
def leaderboard(
    model: Annotated[
        list[str] | None, typer.Option(help="A model of the board, as NAME/DATA=FOLDER (minilm/sst2=…); repeatable.")
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Folder with the data, a folder per task.")] = None,
    cell: Annotated[
        list[str] | None, typer.Option(help="Only this cell, again: MODEL/DATA/METHOD/RECOVER/PRUNE/EPOCHS/SEED.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The file of cells; what is in it is not computed again.")] = BOARD,
    page: Annotated[Path | None, typer.Option(help="Write the page from the file, too.")] = None,
    calibration: Annotated[int, typer.Option(help="Training examples to score on and to repair with.")] = 512,
    json: Json = False,
) -> None:
    """Compare ways of choosing and repairing heads, without training."""
    from headprune.heads.files import write_text
    from headprune.leaderboard import cell as cell_of
    from headprune.leaderboard import page as page_of
    from headprune.leaderboard import read_cells, spec_of, specs, write_cells

    folders = dict(_pair(text) for text in model or [])
    every = {spec.name: spec for spec in specs()}
    unknown = [name for name in cell or [] if name not in every]
    if unknown:
        from headprune.registry import hint

        raise UnknownNameError(f"No cell called '{unknown[0]}'. {hint(unknown[0], every)}")
    cells = {spec_of(found).name: found for found in read_cells(out)}
    wanted = [every[name] for name in cell] if cell else [spec for spec in every.values() if spec.name not in cells]
    wanted = [spec for spec in wanted if f"{spec.model}/{spec.data}" in folders]
    if (model or cell) and not wanted and not page:
        raise DataError("Nothing to do: every cell of these models is in the file, or no folder was given for them.")
    done: list[dict[str, Any]] = []
    entrants: dict[str, _Entrant] = {}
    with progress(len(wanted)) as step:
        for spec in wanted:
            step(spec.name)
            place = f"{spec.model}/{spec.data}"
            if place not in entrants:
                entrants = {place: _Entrant.of(folders[place], spec.data, data_dir, calibration)}  # one at a time
            done.append(cell_of(spec, entrants[place].measured(spec)))
            cells[spec.name] = done[-1]
            write_cells(out, cells.values())
    if page is not None:
        write_text(page, page_of(list(cells.values())))
    if json:
        typer.echo(json_module.dumps(done, indent=1))
        return
    typer.echo(f"{len(done)} cells computed, {len(cells)} of {len(every)} in {out}")


def _pair(text: str) -> tuple[str, str]:
    name, separator, folder = text.partition("=")
    if not separator or name.count("/") != 1:
        raise DataError(f"Found --model {text!r}; expected NAME/DATA=FOLDER, as minilm/sst2=models/sst2.")
    return name, folder


@dataclass
class _Entrant:
    """One model of the board with its data."""

    model: Any
    heads: Any
    data: TaskData
    dev: list[dict[str, Any]]
    count: int  # examples to calibrate on
    seen: dict[Any, Any] = field(default_factory=dict)  # scores and evaluations that several cells need

    @classmethod
    def of(cls, folder: str, data: str, data_dir: Path | None, count: int) -> _Entrant:
        from headprune.cli.options import load_model
        from headprune.sites import find_heads

        is_text = data == "wikitext2"
        place = data_dir / data if data_dir is not None and is_text else data_dir
        length = LENGTHS.get(data, 64)
        opened = TaskOptions(task="causal-lm" if is_text else data, data_dir=place, max_length=length).open(folder)
        model = load_model(folder, "cpu")
        padded_as(model, opened.processor)
        rows = opened.examples("test" if is_text else "dev")
        if is_text:  # the first 32,000 tokens
            rows = rows.subset(list(range(min(len(rows), math.ceil(32_000 / length)))))
        return cls(model, find_heads(model), opened, opened.batches(rows), count)

    def measured(self, spec: Spec) -> dict[str, Any]:
        """One cell."""
        from headprune.leaderboard import BASELINE
        from headprune.stats import paired_bootstrap

        full, nll_full, _ = self._evaluated(None, "none", spec.seed)
        mask, seconds = self._chosen(spec)
        found, nll, repairing = self._evaluated(mask, spec.recover, spec.seed)
        measured: dict[str, Any] = {
            "metric": found.metric.name,
            "full": full.score,
            "score": found.score,
            "nll_full": nll_full,
            "nll": nll,
            "seconds": seconds + repairing,
            "heads": len(mask),
            "calibration": self.count,
        }
        if (spec.method, spec.recover) != BASELINE:
            base, _ = self._chosen(replace(spec, method=BASELINE[0], recover=BASELINE[1]))
            rival, _, _ = self._evaluated(base, "none", spec.seed)
            gap = paired_bootstrap(rival.rows, found.rows, statistic=found.metric.of, seed=spec.seed)
            assert gap.interval is not None
            measured["against"] = {"change": gap.difference, "interval": [gap.interval.low, gap.interval.high]}
        return measured

    def _calibration(self, seed: int) -> Calibration:
        key = ("calibration", seed)
        if key not in self.seen:
            split = "dev" if self.data.options.task == "causal-lm" else "train"  # where the score is on the test text
            rows = self.data.examples(split, self.count, seed)
            self.seen[key] = Calibration(self.model, self.heads, self.data.batches(rows), split)
        return self.seen[key]  # type: ignore[no-any-return]

    def _chosen(self, spec: Spec) -> tuple[HeadMask, float]:
        """The mask, and how long it took to choose it. Scores are the same at every share: taken once."""
        from headprune.scoring import score
        from headprune.selection import select

        calibration = self._calibration(spec.seed)
        if spec.method == "best":
            began = time.perf_counter()
            mask = calibration.search("best", "least-squares", prune=spec.prune, unit=spec.unit)
            return mask, time.perf_counter() - began
        key = ("scores", spec.method, spec.seed)
        if key not in self.seen:
            began = time.perf_counter()
            scores = score(
                self.model, calibration.batches, method=spec.method, heads=self.heads, name="train", seed=spec.seed
            )
            self.seen[key] = scores, time.perf_counter() - began
        scores, seconds = self.seen[key]
        mask = select(scores, self.heads, prune=spec.prune, unit=spec.unit, normalize=scores.view)  # type: ignore[arg-type]
        return mask, seconds

    def _evaluated(self, mask: HeadMask | None, recover: str, seed: int) -> tuple[Any, float, float]:
        """The score with examples, the mean log-loss, and the seconds that the repair took."""
        from headprune.heads import HeadMask
        from headprune.tasks import evaluate

        mask = mask if mask is not None else HeadMask.full(self.heads)
        key = (mask, recover, seed)
        if key not in self.seen:
            began = time.perf_counter()
            with self._calibration(seed).repaired(mask, None if recover == "none" else recover):
                repairing = time.perf_counter() - began
                found = evaluate(self.model, self.dev, self.data.task, mask=mask, heads=self.heads)
                nll = math.log(found.score) if found.metric.name == "perplexity" else self._nll(mask)
            self.seen[key] = found, nll, repairing if recover != "none" else 0.0
        return self.seen[key]  # type: ignore[no-any-return]

    def _nll(self, mask: HeadMask) -> float:
        import torch

        from headprune.masking import masked
        from headprune.scoring.job import Job, evaluation
        from headprune.scoring.losses import ExampleLoss

        job = Job(model=self.model, heads=self.heads, batches=self.dev, loss=ExampleLoss("mean"))
        with torch.no_grad(), evaluation(self.model), masked(self.model, mask, heads=self.heads):
            losses = torch.cat([job.example_losses(batch) for batch in self.dev])
        return float(losses.double().mean())
