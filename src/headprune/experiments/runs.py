"""Which presets were run in a folder, so that results can be found and shown later without anything else.

RUN/run.json holds each preset as it was (its text), at which scale, with which data, and the keys of its trials under
the preset's own names: two presets may share a trial and call it differently.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headprune.errors import FileFormatError, StoreError
from headprune.experiments.claims import Judged, judged
from headprune.experiments.expanding import trials_of
from headprune.experiments.library import shared_steps
from headprune.experiments.presets import Preset
from headprune.experiments.reading import read_preset
from headprune.experiments.store import SCHEMA, Record, Store
from headprune.experiments.trial import Trial
from headprune.experiments.values import Seen, seen
from headprune.heads.files import write_text


@dataclass(frozen=True)
class Run:
    """A preset with its data and trials."""

    preset: Preset
    scale: str
    inputs: Mapping[str, str]  # name -> fingerprint
    names: Mapping[str, Mapping[str, Any]]  # key of a trial -> the preset's own step, label and values for it

    def same_work(self, other: Run) -> bool:
        return (self.preset.source, self.scale, self.inputs) == (other.preset.source, other.scale, other.inputs)

    def records(self, store: Store) -> list[Record]:
        """Those of its trials that were run, under the preset's own names, in its order."""
        found = ((names, store.get(key)) for key, names in self.names.items())
        return [replace(record, trial=_named(record.trial, names)) for names, record in found if record is not None]

    def values(self, records: Iterable[Record]) -> list[Seen]:
        return seen(self.preset, self.scale, records)

    def claims(self, values: Sequence[Seen]) -> list[Judged]:
        return judged(self.preset, self.scale, values)

    def to_dict(self) -> dict[str, Any]:
        return {
            "preset": self.preset.name, "scale": self.scale, "inputs": dict(self.inputs),
            "trials": {key: dict(names) for key, names in self.names.items()}, "source": self.preset.source,
        }  # fmt: skip


def plan_run(
    preset: Preset, scale: str, prints: Mapping[str, str], seeds: Sequence[int] | None = None
) -> tuple[Run, list[Trial]]:
    """A preset's trials, and what to note of them. `prints` are fingerprints of inputs."""
    trials = trials_of(preset, scale, prints, seeds)
    inputs = {name: prints[name] for name in preset.scale(scale).inputs}
    names = {t.key(): {"step": t.step, "label": t.label, "values": t.params["values"]} for t in trials}
    return Run(preset, scale, inputs, names), trials


def note_runs(store: Store, runs: Iterable[Run]) -> None:
    """Write down what is run in a folder; more seeds of a preset join those that it had."""
    known = read_runs(store)
    for run in runs:
        earlier = next((old for old in known if old.same_work(run)), None)
        if earlier is None:
            known.append(run)
        else:
            known[known.index(earlier)] = replace(run, names={**earlier.names, **run.names})
    content = {"schema": SCHEMA, "runs": [run.to_dict() for run in known]}
    write_text(store.folder / "run.json", json.dumps(content, indent=1))


def read_runs(store: Store) -> list[Run]:
    """What was run in a folder, in order."""
    path = store.folder / "run.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["schema"] > SCHEMA:
            raise StoreError(f"'{path}' was written by a newer headprune. Upgrade, or choose another folder.")
        return [_run(entry) for entry in content["runs"]]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FileFormatError(
            f"'{path}' cannot be read ({error}). Remove it: results are kept elsewhere, and the next run writes it."
        ) from error


def _run(entry: Mapping[str, Any]) -> Run:
    preset = read_preset(entry["source"], f"{entry['preset']}.toml", shared_steps())
    names = {str(key): {name: found[name] for name in ("step", "label", "values")} for key, found in
             entry["trials"].items()}  # fmt: skip
    return Run(preset, str(entry["scale"]), dict(entry["inputs"]), names)


def _named(trial: Trial, names: Mapping[str, Any]) -> Trial:
    params = {**trial.params, "values": names["values"]}
    return replace(trial, step=names["step"], label=names["label"], params=params)
