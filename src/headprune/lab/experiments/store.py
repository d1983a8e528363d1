"""Where results are kept: one JSON file a trial, written whole or not at all.

RUN/run.json          what the folder is for (`runs`)
RUN/trials/KEY.json   a trial with its result, or why it failed
RUN/work/KEY/         what the trial wrote
RUN/lock              held by the process that runs it
"""

from __future__ import annotations

import functools
import importlib.util
import json
import math
import os
import platform
import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from headprune.errors import FileFormatError, MissingExtraError, StoreError
from headprune.files import bounded_text, check_inside, loads, write_text
from headprune.lab.experiments.trial import Trial

SCHEMA = 2  # 1: headprune 0.1.0, whose trials do not tell the version of their results
PACKAGES = ("headprune", "torch", "transformers", "numpy")


@dataclass(frozen=True, kw_only=True)
class Record:
    """A trial that was run."""

    trial: Trial
    status: Literal["done", "failed"]
    result: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""
    seconds: float = 0.0
    cpu_seconds: float = 0.0  # of this process: what it costs, however busy the machine; 0 if nobody measured it
    started: str = ""  # ISO 8601, UTC
    environment: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_done(self) -> bool:
        return self.status == "done"

    @property
    def reason(self) -> str:
        """Why it failed, in one line."""
        return (self.error.strip().splitlines() or ["no message"])[-1]

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA, "key": self.trial.key(), "trial": self.trial.to_dict(), "status": self.status,
            "result": dict(self.result), "error": self.error, "seconds": self.seconds, "cpu_seconds": self.cpu_seconds,
            "started": self.started,
            "environment": dict(self.environment),
        }  # fmt: skip

    @classmethod
    def from_dict(cls, content: Mapping[str, Any], where: Path) -> Record:
        """Read what `to_dict` wrote; a trial that somebody changed is noticed by its key."""
        found = content.get("schema") if isinstance(content, Mapping) else None
        if isinstance(found, int) and found > SCHEMA:
            raise StoreError(
                f"'{where}' was written by a newer headprune (format {found}, this one knows {SCHEMA}). Upgrade "
                "headprune, or choose another folder."
            )
        try:
            record = cls(
                trial=Trial.from_dict(content["trial"]),
                cpu_seconds=content.get("cpu_seconds", 0.0),
                **{name: content[name] for name in ("status", "result", "error", "seconds", "started", "environment")},
            )
            if record.trial.key() != content["key"] or record.status not in ("done", "failed"):
                raise ValueError("its key is not that of its trial")
            for name, kind in _TYPES.items():
                if not isinstance(content[name], kind):
                    raise ValueError(f"'{name}' is {content[name]!r}")
            if not isinstance(record.cpu_seconds, int | float) or not math.isfinite(
                record.seconds + record.cpu_seconds
            ):
                raise ValueError(f"'seconds' are {record.seconds} and {record.cpu_seconds!r}")
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise FileFormatError(
                f"'{where}' is not a trial of headprune ({type(error).__name__}: {error}). It was edited or damaged: "
                "remove it, and the trial is run again."
            ) from error
        return record


_TYPES: Mapping[str, Any] = {
    "result": dict, "environment": dict, "error": str, "started": str, "seconds": (int, float)
}  # fmt: skip


def is_key(text: str) -> bool:
    """Whether a text is what `Trial.key` gives."""
    return re.fullmatch(r"[0-9a-f]{16}", text) is not None


class Store:
    """The trials of one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.trials = folder / "trials"

    def path(self, key: str) -> Path:
        if not is_key(key):  # from a file, it could lead anywhere
            raise StoreError(
                f"'{key[:60]}' is not the key of a trial in '{self.trials}'; expected 16 digits of 0-9a-f."
            )
        return self.trials / f"{key}.json"

    def work_folder(self, key: str) -> Path:
        return self.folder / "work" / key

    def get(self, key: str) -> Record | None:
        """A record by its key; None if there is none."""
        path = self.path(key)
        try:
            check_inside(path, self.folder, self.trials)
            record = Record.from_dict(loads(bounded_text(path)), path)
        except FileNotFoundError:
            return None
        except FileFormatError:
            raise
        except ValueError as error:
            raise FileFormatError(f"'{path}' is not JSON ({error}). Remove it: the trial is run again.") from error
        except OSError as error:
            raise FileFormatError(f"'{path}' cannot be read ({error}). Remove it: the trial is run again.") from error
        if record.trial.key() != key:
            raise FileFormatError(
                f"'{path}' holds the trial {record.trial.key()}. Remove it: its own trial is run again."
            )
        return record

    def put(self, record: Record) -> None:
        write_text(self.path(record.trial.key()), json.dumps(record.to_dict(), indent=1))

    def __iter__(self) -> Iterator[Record]:
        """Every record, by key."""
        try:
            names = sorted(entry.name for entry in os.scandir(self.trials) if entry.name.endswith(".json"))
        except FileNotFoundError:
            return
        for name in names:
            record = self.get(name.removesuffix(".json"))
            if record is not None:
                yield record

    def __len__(self) -> int:
        try:
            return sum(entry.name.endswith(".json") for entry in os.scandir(self.trials))
        except FileNotFoundError:
            return 0

    def frame(self) -> Any:
        """Results as a pandas frame: a row a trial, parameters and numbers of the result as columns."""
        check_pandas()
        import pandas as pd

        return pd.DataFrame([row(record) for record in self])

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else may run this folder meanwhile."""
        from filelock import FileLock, Timeout

        self.folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.folder / "lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise StoreError(
                f"Another process runs '{self.folder}' already. Wait for it, or choose another folder; nothing was "
                "touched."
            ) from None
        try:
            yield
        finally:
            lock.release()


def check_pandas() -> None:
    if importlib.util.find_spec("pandas") is None:
        raise MissingExtraError("A table of results needs pandas: pip install 'headprune[tasks]'.")


def row(record: Record) -> dict[str, Any]:
    """A record as one flat row."""
    trial = record.trial
    found: dict[str, Any] = {
        "key": trial.key(), "step": trial.step, "label": trial.label, "work": trial.work, "seed": trial.seed,
        "status": record.status, "seconds": record.seconds, "started": record.started,
    }  # fmt: skip
    found |= flat(trial.params, "params")
    return {**found, **flat(record.result, "result")}


def flat(value: object, name: str) -> dict[str, Any]:
    """Nested tables as names with dots; lists are left out, because they have no place in a row."""
    if isinstance(value, Mapping):
        found: dict[str, Any] = {}
        for key, inner in value.items():
            found |= flat(inner, f"{name}.{key}")
        return found
    return {} if isinstance(value, list) else {name: value}


def environment() -> dict[str, Any]:
    """Where a trial was run, as far as it may matter for its result or its time."""
    return {
        "python": platform.python_version(), "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(), "host": socket.gethostname(), "versions": dict(_versions()),
    }  # fmt: skip


@functools.cache
def _versions() -> Mapping[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # run from a source tree
            continue
    return found


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
