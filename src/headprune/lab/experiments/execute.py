"""Running one trial, wherever that is: the same on every runner."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headprune.errors import HeadpruneError
from headprune.lab.experiments.store import Record, environment, now
from headprune.lab.experiments.trial import Trial
from headprune.lab.experiments.work import Context, Needed, works


def execute_trial(
    trial: Trial,
    folder: Path,
    needs: Mapping[str, Needed],
    inputs: Mapping[str, Path],
    device: str = "cpu",
    threads: int = 0,
) -> Record:
    """The trial's record, done or failed; what it writes goes to `folder`. `inputs` are known by their fingerprints.
    With `threads`, so many compute: another number gives other last digits. Ctrl-C comes through."""
    with _threads(threads):
        return _executed(trial, folder, needs, inputs, device)


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Torch reads the environment when it is loaded, and has to be told when it is there already."""
    before = os.environ.get("OMP_NUM_THREADS")
    torch = sys.modules.get("torch")
    loaded = torch.get_num_threads() if torch is not None else None
    if count:
        os.environ["OMP_NUM_THREADS"] = str(count)
        if torch is not None:
            torch.set_num_threads(count)
    try:
        yield
    finally:
        if before is None:
            os.environ.pop("OMP_NUM_THREADS", None)
        else:
            os.environ["OMP_NUM_THREADS"] = before
        if torch is not None and loaded:
            torch.set_num_threads(loaded)


def _executed(
    trial: Trial, folder: Path, needs: Mapping[str, Needed], inputs: Mapping[str, Path], device: str
) -> Record:
    started, begun, used = now(), time.perf_counter(), time.process_time()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        given = {name: inputs[known] for name, known in trial.params.get("inputs", {}).items()}
        result = works[trial.work].run(Context(trial.params, trial.seed, folder, needs, given, device))
        told: dict[str, Any] = {"status": "done", "result": _plain(result)}
    except HeadpruneError as error:
        told = {"status": "failed", "error": f"{type(error).__name__}: {error}"}
    except Exception:  # whatever a trial stumbles over is its result: the sweep goes on
        told = {"status": "failed", "error": traceback.format_exc(limit=-6)}
    times: dict[str, Any] = {
        "seconds": round(time.perf_counter() - begun, 4), "cpu_seconds": round(time.process_time() - used, 4)
    }  # fmt: skip
    return Record(trial=trial, started=started, environment=environment(), **times, **told)


def _plain(value: object) -> Any:
    """Values that any reader of JSON takes; an infinite perplexity is told in words. Others are an error, here rather
    than when they are stored."""
    if isinstance(value, dict):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    json.dumps(value)
    return value


def fresh(folder: Path) -> Path:
    """An empty place for a trial that is run again because it failed; one that was interrupted goes on in its own."""
    shutil.rmtree(folder, ignore_errors=True)
    return folder
