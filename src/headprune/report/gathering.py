"""Everything a page tells, from stored results alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headprune.errors import StoreError
from headprune.experiments.claims import Judged
from headprune.experiments.runs import Run, read_runs
from headprune.experiments.store import Record, Store
from headprune.experiments.values import Seen
from headprune.report.lines import Chart, charts_of
from headprune.report.subjects import Subject, subjects_of


@dataclass(frozen=True)
class Told:
    """A preset: what the paper says beside what was found."""

    run: Run
    values: tuple[Seen, ...]
    claims: tuple[Judged, ...]
    seeds: tuple[int, ...]

    def command(self) -> str:
        """What repeats it, where its inputs are known by name."""
        inputs = "".join(f" --input {name}={name.upper()}" for name in self.run.inputs)
        seeds = ",".join(map(str, self.seeds))
        scale = "" if self.run.scale == "small" else f" --scale {self.run.scale}"
        return f"headprune run {self.run.preset.name}{scale} --seeds {seeds}{inputs} --out RUNS"


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
    told: tuple[Told, ...]
    subjects: tuple[Subject, ...]
    charts: tuple[Chart, ...]
    sizes: tuple[Size, ...]
    speeds: tuple[Speed, ...]
    waiting: int  # trials that were planned and not run

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
            known = {**record.environment.get("versions", {}), **{
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
        names = ", ".join(f"{one.run.preset.name} ({one.run.scale})" for one in self.told) or "no preset"
        done = sum(record.is_done for record in self.records)
        hours = sum(record.seconds for record in self.records) / 3600
        rest = [f"{len(self.failed)} failed"] if self.failed else []
        rest += [f"{self.waiting} not run yet"] if self.waiting else []
        told = f" ({', '.join(rest)})" if rest else ""
        seeds = "seed " + _joined(self.seeds) if len(self.seeds) == 1 else "seeds " + _joined(self.seeds)
        time = f"{hours:.1f} hours" if hours >= 1 else f"{hours * 60:.0f} minutes"
        return f"{done} trials of {names} with {seeds}{told} took {time} in all."

    def _heads(self) -> str:
        best = None
        for chart in self.charts:
            found = chart.largest_share_within(1.0)
            if found is not None and (best is None or found[2].share > best[1][2].share):
                best = chart, found
        if best is None and self.charts:
            return "No share of heads that was tried goes within one point of the score."
        if best is None:
            return "Nothing here tells what it costs to prune heads."
        chart, (line, whole, point) = best
        return (
            f"At most {point.share:.0%} of the heads go within one point of {chart.metric} "
            f"({whole.mean:.4g} with all, {point.mean:.4g} without them): {line.name}, {chart.title}."
        )

    def _papers(self) -> str:
        claims = [claim for one in self.told for claim in one.claims]
        if not claims:
            return "No statement of a paper was tested."
        findings = Counter(claim.verdict for claim in claims if claim.is_finding)
        few = Counter(claim.verdict for claim in claims if not claim.is_finding)
        rest = [f"{few['agrees']} agree and {few['disagrees']} disagree on fewer than three seeds"]
        rest = rest if few["agrees"] + few["disagrees"] else []
        rest += [f"{few['open']} stay open"] if few["open"] else []
        rest += [f"{few['not done']} were not run"] if few["not done"] else []
        more = f"; {', '.join(rest)}" if rest else ""
        return (
            f"Of what the papers say, {len(claims)} statement{'s were' if len(claims) > 1 else ' was'} tested: "
            f"{findings['agrees']} agree and {findings['disagrees']} disagree with three or more seeds here{more}."
        )


def gather(folders: Sequence[Path], title: str | None = None) -> Report:
    """Read folders of results; nothing is computed that needs a model."""
    records: dict[str, Record] = {}
    told: list[Told] = []
    planned: set[str] = set()
    for folder in folders:
        store = Store(folder)
        if not len(store):
            raise StoreError(
                f"'{folder}' holds no results: expected a folder that `headprune run --out` wrote, with trials/*.json."
            )
        for run in read_runs(store):
            found = run.records(store)
            planned |= set(run.names)
            for record in found:
                records.setdefault(record.trial.key(), record)
            values = run.values(found)
            seeds = sorted({record.trial.seed for record in found})
            told.append(Told(run, tuple(values), tuple(run.claims(values)), tuple(seeds)))
        for record in store:  # what was run without a preset
            records.setdefault(record.trial.key(), record)
    every = tuple(records.values())
    return Report(
        title=title or ", ".join(one.run.preset.name for one in told) or folders[0].resolve().name,
        records=every,
        told=tuple(told),
        subjects=tuple(subjects_of(every)),
        charts=tuple(charts_of(every)),
        sizes=tuple(_sizes(every)),
        speeds=tuple(_speeds(every)),
        waiting=len(planned - set(records)),
    )


def _sizes(records: Iterable[Record]) -> Iterable[Size]:
    for record in records:
        result: Any = record.result
        if record.is_done and record.trial.params.get("command") == "prune" and "macs" in result:
            pairs = (tuple(result[name]) for name in ("heads", "parameters", "macs"))
            yield Size(record.trial.label, *pairs)


def _speeds(records: Iterable[Record]) -> Iterable[Speed]:
    for record in records:
        result: Any = record.result
        if record.is_done and record.trial.work == "speed":
            low, high = result["speedup_quartiles"]
            yield Speed(record.trial.label, result["speedup"], (low, high), result["control"])


def _joined(values: Sequence[Any]) -> str:
    words = list(map(str, values))
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}" if words else "none"
