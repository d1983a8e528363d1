"""A sweep: trials in an order that their needs allow, each run once, each stored when it is done."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from headprune.errors import StoreError
from headprune.lab.experiments.execute import execute_trial, fresh
from headprune.lab.experiments.store import Record, Store
from headprune.lab.experiments.trial import Trial
from headprune.lab.experiments.work import Needed

PresetResult = Callable[[Record], None]


class Runner(Protocol):
    """Runs trials that are ready and gives their records back as they come, in any order."""

    def run(self, sweep: Sweep) -> Iterator[Record]: ...


@dataclass(frozen=True)
class Summary:
    """What a sweep did."""

    done: int
    known: int  # finished by an earlier run
    failed: tuple[Record, ...]
    blocked: tuple[Trial, ...]  # need a trial that failed


class Sweep:
    """Which trials are left, and which of them can be run now."""

    def __init__(
        self,
        trials: Iterable[Trial],
        store: Store,
        *,
        inputs: Mapping[str, Path] | None = None,
        retry: bool = False,
        device: str = "cpu",
        threads: int = 0,
    ) -> None:
        self.store, self.device, self.threads = store, device, threads
        self.inputs = dict(inputs or {})  # fingerprint -> where it lies
        self.trials: dict[str, Trial] = {}
        for trial in trials:
            self.trials.setdefault(trial.key(), trial)
        for trial in self.trials.values():
            if trial.made_by:
                raise StoreError(f"{trial.label or trial.kind} is of {trial.made_by}, which this headprune cannot run.")
            for name, key in trial.needs.items():
                if key not in self.trials:
                    raise StoreError(f"{trial.label or trial.kind} needs '{name}' ({key}), which is not in the sweep.")
        self.records: dict[str, Record] = {}
        for key in self.trials:
            record = store.get(key)
            if record is not None and (record.is_done or not retry):
                self.records[key] = record
        self.known = sum(record.is_done for record in self.records.values())
        self._given: set[str] = set()

    def ready(self) -> list[Trial]:
        """Trials that were not given out yet and whose needs are done."""
        return [
            trial
            for key, trial in self.trials.items()
            if key not in self.records
            and key not in self._given
            and all((found := self.records.get(need)) is not None and found.is_done for need in trial.needs.values())
        ]

    def give(self, trial: Trial) -> Mapping[str, Needed]:
        """Note that a trial is being run, and say where what it needs is."""
        key = trial.key()
        self._given.add(key)
        earlier = self.store.get(key)
        if earlier is not None and not earlier.is_done:
            fresh(self.store.work_folder(key))
        return {
            name: Needed(self.store.work_folder(need), self.records[need].result) for name, need in trial.needs.items()
        }

    def took(self, record: Record) -> None:
        """Store what came back."""
        self.store.put(record)
        self.records[record.trial.key()] = record

    def summary(self) -> Summary:
        failed = tuple(record for record in self.records.values() if not record.is_done)
        blocked = tuple(trial for key, trial in self.trials.items() if key not in self.records)
        return Summary(sum(r.is_done for r in self.records.values()) - self.known, self.known, failed, blocked)


class Inline:
    """One trial after another, in this process."""

    def run(self, sweep: Sweep) -> Iterator[Record]:
        while ready := sweep.ready():
            for trial in ready:
                yield execute_trial(
                    trial, sweep.store.work_folder(trial.key()), sweep.give(trial), sweep.inputs, sweep.device,
                    sweep.threads,
                )  # fmt: skip


def run_sweep(
    trials: Sequence[Trial],
    store: Store,
    runner: Runner,
    *,
    inputs: Mapping[str, Path] | None = None,
    retry: bool = False,
    device: str = "cpu",
    threads: int = 0,
    told: PresetResult = lambda record: None,
) -> Summary:
    """Run what is left of the trials. What is stored is never run again; an interruption loses what was under way."""
    with store.locked():
        sweep = Sweep(trials, store, inputs=inputs, retry=retry, device=device, threads=threads)
        for record in runner.run(sweep):
            sweep.took(record)
            told(record)
        return sweep.summary()
