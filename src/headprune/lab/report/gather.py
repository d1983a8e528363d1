"""Everything a page tells, from stored results alone."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from headprune.errors import HeadpruneError, StoreError, UnknownNameError
from headprune.jobs.prune import PruneResult
from headprune.lab.experiments.claims import Counts, Verdict
from headprune.lab.experiments.library import find_preset, preset_names
from headprune.lab.experiments.measures import MeasuredSpeed
from headprune.lab.experiments.runs import Run, read_runs
from headprune.lab.experiments.store import Record, Store
from headprune.lab.experiments.values import Observed
from headprune.lab.report.lines import Chart, charts_of, marked
from headprune.lab.report.results import Problem, Results, Shown, read_results
from headprune.lab.report.subjects import Subject, subjects_of
from headprune.registry import hint


@dataclass(frozen=True)
class PresetResult:
    """A preset: what the paper says beside what was found."""

    run: Run
    values: tuple[Observed, ...]
    claims: tuple[Verdict, ...]

    def commands(self) -> list[str]:
        """What repeats it, where its inputs are known by name."""
        preset = self.run.preset
        known = preset.name in preset_names() and find_preset(preset.name).source == preset.source
        words = ["headprune", "run", preset.name if known else f"{preset.name}.toml"]
        words += [] if self.run.scale == "small" else ["--scale", self.run.scale]
        for name in self.run.inputs:
            words += ["--input", f"{name}={name.upper()}"]
        asked = [["--seeds", ",".join(map(str, seeds))] if seeds else [] for seeds in self.run.asked or ((),)]
        return [shlex.join([*words, *seeds, "--out", "RUNS"]) for seeds in asked]


@dataclass(frozen=True)
class Size:
    """What a pruning took away."""

    name: str
    heads: tuple[int, int]
    parameters: tuple[int, int]
    macs: tuple[int, int]


@dataclass(frozen=True)
class Speed:
    """A measured speed, with the same model against itself as a control."""

    name: str
    speedup: float
    quartiles: tuple[float, float]
    control: float


@dataclass(frozen=True)
class Report:
    """A folder's results, ready to be shown."""

    title: str
    records: tuple[Record, ...]
    told: tuple[PresetResult, ...]
    subjects: tuple[Subject, ...]
    charts: tuple[Chart, ...]
    sizes: tuple[Size, ...]
    speeds: tuple[Speed, ...]
    waiting: int  # trials that were planned and not run
    problems: tuple[Problem, ...] = ()  # what is stored and cannot be shown

    @property
    def failed(self) -> list[Record]:
        return [record for record in self.records if not record.is_done]

    @property
    def seeds(self) -> list[int]:
        return sorted({record.trial.seed for record in self.records})

    def versions(self) -> list[tuple[str, str]]:
        """Of packages and machines; several where trials were run under several."""
        found: dict[str, list[str]] = {}
        for record in self.records:
            versions = record.environment.get("versions")
            known = {**(versions if isinstance(versions, dict) else {}), **{
                name: record.environment.get(name) for name in ("python", "system", "cores")
            }}  # fmt: skip
            for name, value in known.items():
                if value is not None and str(value) not in found.setdefault(name, []):
                    found[name].append(str(value))
        return [(name, ", ".join(values)) for name, values in found.items()]

    def summary(self) -> list[str]:
        """Three sentences: what was run, what it says of heads, and whether the papers agree."""
        return [self._what(), self._heads(), self._papers()]

    def _what(self) -> str:
        shown = [f"{one.run.preset.name} ({marked(one.run.scale, one.run.made_by)})" for one in self.told]
        names = ", ".join(shown) or "no preset"
        done = sum(record.is_done for record in self.records)
        seconds = sum(record.seconds for record in self.records)
        rest = [f"{len(self.failed)} failed"] if self.failed else []
        rest += [f"{self.waiting} not run yet"] if self.waiting else []
        told = f" ({', '.join(rest)})" if rest else ""
        seeds = f"seed{'s' if len(self.seeds) > 1 else ''} {_joined(self.seeds)}"
        sizes = ((3600, "hours", ".1f"), (60, "minutes", ".0f"), (1, "seconds", ".0f"))
        size, unit, form = next(one for one in sizes if seconds >= 2 * one[0] or one[0] == 1)
        return f"{done} trials of {names} with {seeds}{told} took {seconds / size:{form}} {unit} in all."

    def _heads(self) -> str:
        charts = [chart for chart in self.charts if not chart.made_by] or self.charts  # versions are not mixed
        if not any(chart.tells for chart in charts):
            return "Nothing here tells what it costs to prune heads."
        found = [(chart, most) for chart in charts if (most := chart.most_within(1.0)) is not None]
        if not found:
            return "No way of choosing heads stayed within one point of the score at the first share that was tried."
        chart, most = max(found, key=lambda one: one[1].point.share)
        seeds = len(most.point.by_seed)
        return (
            f"The score stayed within one point of {chart.metric} up to {most.point.share:.1%} of heads pruned "
            f"({most.whole:.4g} with all, {most.point.mean:.4g} without them; {most.line.name}, {chart.title}, "
            f"{seeds} seed{'s' if seeds > 1 else ''})."
        )

    def _papers(self) -> str:
        shown = [one for one in self.told if not one.run.made_by] or self.told  # versions are not mixed
        claims = [claim for one in shown for claim in one.claims]
        return Counts.of(claims).message()


def gather(folders: Sequence[Path], title: str | None = None, *, presets: Sequence[str] = ()) -> Report:
    """Read folders of results, or only some presets there; nothing is computed that needs a model."""
    stores = [Store(folder) for folder in folders]
    for store in stores:
        if not len(store):
            raise StoreError(
                f"'{store.folder}' holds no results: expected a folder that `headprune run --out` wrote, with "
                "trials/*.json."
            )
    records: dict[str, Record] = {}
    told: list[PresetResult] = []
    charts: list[Chart] = []
    problems: list[Problem] = []
    read: dict[str, Shown | HeadpruneError] = {}  # results by the key of their trial
    runs = _joined_runs(
        run
        for store in stores
        for run in read_runs(store, lambda name, error: problems.append(Problem.of(name, error)))
    )
    known = [run.preset.name for run in runs]
    for name in presets:
        if name not in known:
            raise UnknownNameError(f"No preset '{name}' was run here. {hint(name, known)}")
    runs = [run for run in runs if not presets or run.preset.name in presets]
    for run in runs:
        found = list(map(_marked, run.records(*stores)))
        for record in found:
            records.setdefault(record.trial.key(), record)
        values = run.values(found)
        told.append(PresetResult(run, tuple(values), tuple(run.claims(values))))
        results = read_results(found, read)
        charts += [_titled(chart, run, len(runs)) for chart in charts_of(results)]
        problems += results.problems
    rest: dict[str, Record] = {}  # what was run without a preset
    for record in (record for store in stores for record in store if not presets):
        key = record.trial.key()
        if key not in records and not (key in rest and rest[key].is_done):
            rest[key] = _marked(record)
    every = (*records.values(), *rest.values())
    results, others = read_results(every, read), read_results(rest.values(), read)
    subjects, more = subjects_of(results), charts_of(others)
    return Report(
        title=title or ", ".join(dict.fromkeys(one.run.preset.name for one in told)) or folders[0].resolve().name,
        records=every,
        told=tuple(told),
        subjects=tuple(subjects),
        charts=(*_once(charts), *more),
        sizes=tuple(_sizes(results)),
        speeds=tuple(_speeds(results)),
        problems=tuple(dict.fromkeys((*problems, *results.problems, *others.problems))),
        waiting=len({key for run in runs for key in run.names} - set(records)),
    )


def _joined_runs(runs: Iterable[Run]) -> list[Run]:
    """The same work in several folders is one run."""
    found: list[Run] = []
    for run in runs:
        same = next((place for place, other in enumerate(found) if other.same_work(run)), None)
        if same is None:
            found.append(run)
        else:
            found[same] = found[same].joined(run)
    return found


def _titled(chart: Chart, run: Run, runs: int) -> Chart:
    return replace(chart, title=f"{run.preset.name} ({run.scale}): {chart.title}") if runs > 1 else chart


def _once(charts: Sequence[Chart]) -> list[Chart]:
    """Presets that share trials have the same charts: the first is enough."""
    found: list[Chart] = []
    for chart in charts:
        if not any((other.metric, other.lines) == (chart.metric, chart.lines) for other in found):
            found.append(chart)
    return found


def _marked(record: Record) -> Record:
    """A trial of another version of headprune says so wherever its name is shown."""
    trial = record.trial
    return replace(record, trial=replace(trial, label=marked(trial.label, trial.made_by)))


def _sizes(results: Results) -> Iterable[Size]:
    for record, found in results.known:
        if isinstance(found, PruneResult):
            yield Size(record.trial.label, found.heads, found.parameters, found.macs)


def _speeds(results: Results) -> Iterable[Speed]:
    for record, found in results.known:
        if isinstance(found, MeasuredSpeed):
            yield Speed(record.trial.label, found.speedup, found.speedup_quartiles, found.control)


def _joined(values: Sequence[object]) -> str:
    words = list(map(str, values))
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}" if words else "none"
