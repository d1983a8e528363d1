"""Which presets were run in a folder, so that results can be found and shown later without anything else.

RUN/run.json holds each preset as it was (its text), at which scale, with which data, and the keys of its trials under
the preset's own names: two presets may share a trial and call it differently. What older versions of headprune ran
stays there as it is, under the version of its results: it is shown, and never joined with newer trials.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headprune.errors import FileFormatError, PresetError, StoreError
from headprune.files import bounded_text, loads, write_text
from headprune.lab.experiments.claims import Verdict, verdicts
from headprune.lab.experiments.expand import trials_of
from headprune.lab.experiments.library import shared_steps
from headprune.lab.experiments.preset_file import read_preset
from headprune.lab.experiments.presets import Preset
from headprune.lab.experiments.store import SCHEMA, Record, Store, is_key
from headprune.lab.experiments.trial import FIRST, Trial, current_version
from headprune.lab.experiments.values import Observed, seen


@dataclass(frozen=True)
class Run:
    """A preset with its data and trials."""

    preset: Preset
    scale: str
    inputs: Mapping[str, str]  # name -> fingerprint
    names: Mapping[str, Mapping[str, Any]]  # key of a trial -> the preset's own step, label and values for it
    steps: str  # fingerprint of its steps as they were, shared ones included
    asked: tuple[tuple[int, ...], ...] = ()  # seeds of each time it was run; an empty one is the preset's own
    results: str = FIRST  # which versions of results its trials belong to

    @property
    def made_by(self) -> str:
        """Nothing if this headprune computes such results; else which one did, for people."""
        if self.results == _results(self.preset, self.scale):
            return ""
        return self.results if self.results == FIRST else "an older version"

    def same_work(self, other: Run) -> bool:
        mine, theirs = self.to_dict(), other.to_dict()
        return all(mine[part] == theirs[part] for part in _SAME)

    def joined(self, other: Run) -> Run:
        """The same work with the trials of both."""
        return replace(
            self,
            names={**self.names, **other.names},
            asked=tuple(dict.fromkeys((*self.asked, *other.asked))),
        )

    def records(self, *stores: Store) -> list[Record]:
        """Those of its trials that were run, under the preset's own names, in its order; done rather than failed."""
        found = []
        for key, names in self.names.items():
            known = [record for store in stores if (record := store.get(key)) is not None]
            for record in sorted(known, key=lambda record: not record.is_done)[:1]:
                found.append(replace(record, trial=_named(record.trial, names)))
        return found

    def values(self, records: Iterable[Record]) -> list[Observed]:
        return seen(self.preset, self.scale, records, [(n["step"], n["values"]) for n in self.names.values()])

    def claims(self, values: Sequence[Observed]) -> list[Verdict]:
        return verdicts(self.preset, self.scale, values)

    def to_dict(self) -> dict[str, Any]:
        return {
            "preset": self.preset.name, "scale": self.scale, "inputs": dict(self.inputs),
            "steps": self.steps, "results": self.results, "asked": [list(seeds) for seeds in self.asked],
            "trials": {key: dict(names) for key, names in self.names.items()}, "source": self.preset.source,
        }  # fmt: skip


def plan_run(
    preset: Preset, scale: str, prints: Mapping[str, str], seeds: Sequence[int] | None = None, version: str = ""
) -> tuple[Run, list[Trial]]:
    """A preset's trials, and what to note of them. `prints` are fingerprints of inputs; the `version` of stored results
    finds those."""
    trials = trials_of(preset, scale, prints, seeds, version)
    inputs = {name: prints[name] for name in preset.scale(scale).inputs}
    names = {t.key(): {"step": t.step, "label": t.label, "values": t.params["values"]} for t in trials}
    steps = hashlib.sha256(repr(preset.scale(scale).steps).encode()).hexdigest()[:16]
    return Run(preset, scale, inputs, names, steps, (tuple(seeds or ()),), version or _results(preset, scale)), trials


def _results(preset: Preset, scale: str) -> str:
    """The versions of all that its steps compute: where one rises, the run is another."""
    versions = {step.command or step.work: "" for step in preset.scale(scale).steps}
    return ", ".join(f"{kind} {current_version(kind)}" for kind in sorted(versions))


def note_runs(store: Store, runs: Iterable[Run]) -> None:
    """Write down what is run in a folder; more seeds of a preset join those that it had."""
    entries = _entries(store)
    for run in runs:
        mine = run.to_dict()
        same = [n for n, old in enumerate(entries) if all(old.get(part, FIRST) == mine[part] for part in _SAME)]
        if same:
            entries[same[0]] = _run(entries[same[0]]).joined(run).to_dict()
        else:
            entries.append(mine)
    content = {"schema": SCHEMA, "runs": entries}
    write_text(store.folder / "run.json", json.dumps(content, indent=1))


def read_runs(store: Store, problem: Callable[[str, PresetError], None] = lambda preset, error: None) -> list[Run]:
    """What was run in a folder, in order. A preset that this version cannot read any more is told to `problem` and left
    out, not lost."""
    found = []
    for entry in _entries(store):
        try:
            found.append(_run(entry))
        except PresetError as error:
            problem(entry["preset"], error)
    return found


def older_trials(store: Store, names: Iterable[str]) -> dict[str, int]:
    """How many trials of these presets other versions of headprune left in a folder, by version."""
    wanted = set(names)
    found: dict[str, set[str]] = {}
    for run in read_runs(store):
        if run.made_by and run.preset.name in wanted:
            found.setdefault(run.made_by, set()).update(key for key in run.names if store.path(key).is_file())
    return {version: len(keys) for version, keys in found.items() if keys}


_SAME = ("source", "scale", "inputs", "steps", "results")


_ENTRY = {"preset": str, "source": str, "scale": str, "inputs": dict, "steps": str, "asked": list, "trials": dict}
_NAMES = {"step": str, "label": str, "values": dict}


def _check(table: Mapping[str, object], kinds: Mapping[str, type]) -> None:
    for part, kind in kinds.items():
        if not isinstance(table[part], kind):
            raise ValueError(f"'{part}' is {table[part]!r}")


def _entries(store: Store) -> list[dict[str, Any]]:
    """The notes as they are."""
    path = store.folder / "run.json"
    try:
        content = loads(bounded_text(path))
        if content["schema"] > SCHEMA:
            raise StoreError(f"'{path}' was written by a newer headprune. Upgrade, or choose another folder.")
        entries: list[dict[str, Any]] = content["runs"]
        if not isinstance(entries, list):
            raise ValueError(f"'runs' is {type(entries).__name__}")
        for entry in entries:
            _check(entry, _ENTRY)
            for key, names in entry["trials"].items():
                _check(names, _NAMES)
                if not is_key(key):
                    raise ValueError(f"'{key[:60]}' is not the key of a trial")
            if not isinstance(entry.get("results", FIRST), str):
                raise ValueError(f"'results' is {entry['results']!r}")
            if not all(isinstance(found, str) for found in entry["inputs"].values()):
                raise ValueError(f"'inputs' is {entry['inputs']!r}")
            if not all(type(seed) is int for seeds in entry["asked"] for seed in seeds):
                raise ValueError(f"'asked' is {entry['asked']!r}")
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FileFormatError(
            f"'{path}' cannot be read ({error}). Remove it: results are kept elsewhere, and the next run writes it."
        ) from error
    return entries


def _run(entry: Mapping[str, Any]) -> Run:
    preset = read_preset(entry["source"], f"{entry['preset']}.toml", shared_steps(), is_old=True)
    names = {str(key): {name: found[name] for name in _NAMES} for key, found in entry["trials"].items()}
    asked = tuple(map(tuple, entry["asked"]))
    return Run(
        preset, entry["scale"], dict(entry["inputs"]), names, entry["steps"], asked, entry.get("results", FIRST)
    )  # fmt: skip


def _named(trial: Trial, names: Mapping[str, Any]) -> Trial:
    params = {**trial.params, "values": names["values"]}
    return replace(trial, step=names["step"], label=names["label"], params=params)
