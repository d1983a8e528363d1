"""A paper's tables and figures, repeated: what to run is planned, run where it is not finished, and held against what
the paper says."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from headprune.checkpoint.out_folder import open_out
from headprune.errors import DataError, PresetError
from headprune.jobs.job import Progress
from headprune.jobs.options.run import RunOptions
from headprune.lab.experiments.claims import Verdict
from headprune.lab.experiments.data_check import check_data, check_machine
from headprune.lab.experiments.estimate import Estimate, estimate, known_times
from headprune.lab.experiments.inputs import fingerprint
from headprune.lab.experiments.presets import Preset
from headprune.lab.experiments.ray_runner import RayRunner
from headprune.lab.experiments.runs import Run, note_runs, older_trials, plan_run
from headprune.lab.experiments.store import Store, check_pandas
from headprune.lab.experiments.sweep import Inline, Runner, run_sweep
from headprune.lab.experiments.trackers import check_tracker, export
from headprune.lab.experiments.trial import Trial
from headprune.lab.experiments.values import Observed


@dataclass(frozen=True)
class Planned:
    """Trials that would be run."""

    trials: Sequence[Trial]
    version: ClassVar[int] = 1

    def to_dict(self) -> list[dict[str, str]]:
        return [{"key": trial.key(), "label": trial.label, "command": trial.kind} for trial in self.trials]

    def message(self) -> str:
        return "\n".join(f"{trial.key()}  {trial.label}: {trial.kind}" for trial in self.trials)


@dataclass(frozen=True)
class Repeated:
    """What was found, beside what the papers say."""

    scale: str
    done: int
    known: int  # finished by an earlier run
    failed: Mapping[str, str]  # label -> error
    blocked: Sequence[str]  # labels of trials that need a failed one
    presets: Mapping[str, Sequence[Observed]]
    claims: Mapping[str, Sequence[Verdict]]
    folder: Path
    older: Mapping[str, int] = field(default_factory=dict)  # trials there of other versions, by version
    sent: Mapping[str, int] = field(default_factory=dict)  # trials by tracker
    version: ClassVar[int] = 1

    def to_dict(self) -> dict[str, Any]:
        return {
            "scale": self.scale, "done": self.done, "known": self.known, "older": dict(self.older),
            "failed": dict(self.failed), "blocked": list(self.blocked),
            "presets": {name: [value.to_dict() for value in found] for name, found in self.presets.items()},
            "claims": {
                name: [claim.to_dict() | {"told": claim.told()} for claim in found]
                for name, found in self.claims.items()
            },
        }  # fmt: skip

    def message(self) -> str:
        lines = []
        for name, values in self.presets.items():
            lines += [name] if values else []
            lines += [f"  {value.message()}" for value in values]
            lines += [f"  {claim.text}: {claim.told()}" for claim in self.claims[name]]
        lines += [
            f"{count} trials of {version} are in {self.folder}: `headprune report` shows them; none was used here"
            for version, count in self.older.items()
        ]
        lines.append(
            f"{self.done} trials run, {self.known} known already, {len(self.failed)} failed, "
            f"{len(self.blocked)} waiting for these; {self.folder}"
        )
        return "\n".join([*lines, *(f"{count} trials sent to {name}" for name, count in self.sent.items())])


def repeat(presets: Sequence[Preset], options: RunOptions, progress: Progress) -> Planned | Estimate | Repeated:
    """Run what is left of some presets in a folder; or only tell what would be run, or how long it would take."""
    check_machine(options)
    runner = _runner(options)
    for name in options.track or ():  # better known now than after hours
        check_tracker(name)
    if options.csv is not None:
        check_pandas()
    seeds = _seeds(options.seeds)
    wanted = {name for preset in presets for name in preset.scale(options.scale).inputs}
    paths = {**_in_folder(options.inputs, wanted), **_inputs(options.given or [])}
    prints = {name: fingerprint(path) for name, path in paths.items() if name in wanted}
    if options.estimate:  # no data are needed to tell what they would cost
        prints = dict.fromkeys(wanted, "") | prints
    planned = [plan_run(preset, options.scale, prints, seeds) for preset in presets]
    trials = [trial for _, found in planned for trial in found]
    if options.dry_run:
        return Planned(trials)
    if options.estimate:
        return _estimated(planned, Store(options.out), options)
    check_data(trials, {name: path for name, path in paths.items() if name in wanted})
    store = Store(open_out("run", options).path)
    with store.locked():
        note_runs(store, [one for one, _ in planned])
    keys = {trial.key() for trial in trials}
    known = [record for key in keys if (record := store.get(key)) is not None]
    finished = sum(record.is_done or not options.retry for record in known)
    with progress.parts(len(keys), finished) as ended:
        summary = run_sweep(
            trials, store, runner, inputs={prints[name]: path for name, path in paths.items() if name in prints},
            retry=options.retry, device=options.device or ("cuda" if options.num_gpus else "cpu"),
            threads=options.threads, told=lambda record: ended(f"done: {record.trial.label}"),
        )  # fmt: skip
    for record in summary.failed if not progress.quiet else ():
        progress.note(f"failed: {record.trial.label}: {record.reason}")
    if options.csv is not None:
        store.frame().to_csv(options.csv, index=False)
    values = {one.preset.name: one.values(one.records(store)) for one, _ in planned}
    return Repeated(
        scale=options.scale, done=summary.done, known=summary.known,
        failed={record.trial.label: record.error for record in summary.failed},
        blocked=[trial.label for trial in summary.blocked], presets=values,
        claims={one.preset.name: one.claims(values[one.preset.name]) for one, _ in planned}, folder=store.folder,
        older=older_trials(store, values), sent={name: export(store, name, store.folder / name)
                                                 for name in options.track or ()},
    )  # fmt: skip


def _runner(options: RunOptions) -> Runner:
    if options.runner == "inline":
        return Inline()
    if options.runner != "ray":
        raise PresetError(f"The runner is '{options.runner}'; expected inline or ray.")
    return RayRunner(address=options.address, num_cpus=options.num_cpus, num_gpus=options.num_gpus)


def _seeds(text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        seeds = [int(part) for part in text.split(",")]
    except ValueError:
        raise PresetError(f"--seeds is '{text}'; expected whole numbers with commas, as 1,2,3.") from None
    if len(set(seeds)) < len(seeds):
        raise PresetError(f"--seeds is '{text}'; a seed counts once: leave out what is there twice.")
    return seeds


def _in_folder(folder: Path | None, wanted: set[str]) -> dict[str, Path]:
    """Inputs by their names; a single file may have any ending."""
    if folder is None:
        return {}
    if not folder.is_dir():
        raise DataError(f"--inputs is '{folder}'; expected a folder with {', '.join(sorted(wanted))}.")
    there = {name: sorted(folder.glob(f"{name}.*")) for name in wanted}
    files = {name: found[0].resolve() for name, found in there.items() if len(found) == 1}
    return {**files, **{name: (folder / name).resolve() for name in wanted if (folder / name).exists()}}


def _estimated(planned: Sequence[tuple[Run, Sequence[Trial]]], store: Store, options: RunOptions) -> Estimate:
    trials = {run.preset.name: found for run, found in planned}
    done = {record.trial.key() for record in store if record.is_done} if store.trials.is_dir() else set()
    workers = max(1, int((os.cpu_count() or 1) / max(1, options.num_cpus))) if options.runner == "ray" else 1
    return estimate(trials, done, workers, known_times())


def _inputs(given: Sequence[str]) -> dict[str, Path]:
    found = {}
    for text in given:
        name, equals, path = text.partition("=")
        if not equals or not name or not path:
            raise PresetError(f"--input is '{text}'; expected NAME=PATH.")
        found[name] = Path(path).resolve()
    return found
