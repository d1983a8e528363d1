"""Stored results in the trackers that people have: those of accelerate, which the Trainer's users know."""

from __future__ import annotations

import importlib.util
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headprune.errors import MissingExtraError, UnknownNameError
from headprune.files import write_text
from headprune.lab.experiments.store import Record, Store, flat
from headprune.registry import hint

TRACKERS = ("tensorboard", "mlflow", "wandb")


def check_tracker(tracker: str) -> None:
    """It is one of those known, and installed."""
    if tracker not in TRACKERS:
        raise UnknownNameError(f"No tracker called '{tracker}'. {hint(tracker, TRACKERS)}")
    if any(importlib.util.find_spec(package) is None for package in (tracker, "accelerate")):
        raise MissingExtraError(f"Exporting to {tracker} needs it and accelerate: pip install {tracker} accelerate.")


def export(store: Store, tracker: str, folder: Path) -> int:
    """Every finished trial as a run of its own: its parameters and the numbers of its result. How many were sent.

    TensorBoard writes into `folder`; MLflow and W&B go where their own settings say (MLFLOW_TRACKING_URI, `wandb
    login`), as an experiment or project called headprune. `folder/exported` lists what was sent: not sent again.
    """
    check_tracker(tracker)
    notes = folder / "exported"
    known = set(notes.read_text(encoding="utf-8").split()) if notes.is_file() else set()
    sent = 0
    for record in store:
        key = record.trial.key()
        if record.is_done and key not in known:
            _export(record, tracker, folder)
            known.add(key)
            write_text(notes, "\n".join(sorted(known)) + "\n")
            sent += 1
    return sent


def _export(record: Record, tracker: str, folder: Path) -> None:
    opened = _opened(tracker, record.trial.key(), folder)
    opened.start()
    opened.store_init_configuration(_parameters(record))
    numbers = {_plain(name): value for name, value in flat(record.result, "result").items() if _is_number(value)}
    opened.log({**numbers, "seconds": record.seconds})
    opened.finish()


def _opened(tracker: str, key: str, folder: Path) -> Any:
    """accelerate's tracker for one run."""
    from accelerate import PartialState, tracking

    PartialState()  # trackers ask it whether this is the main process
    if tracker == "tensorboard":
        return tracking.TensorBoardTracker(key, logging_dir=folder)
    if tracker == "mlflow":
        return tracking.MLflowTracker("headprune", run_name=key)
    return tracking.WandBTracker("headprune", name=key, reinit="finish_previous")


def _parameters(record: Record) -> dict[str, Any]:
    trial = record.trial
    told: Mapping[str, Any] = {
        "step": trial.step, "label": trial.label, "work": trial.work, "seed": trial.seed, **flat(trial.params, "params")
    }  # fmt: skip
    return {_plain(name): value if _is_number(value) else str(value)[:500] for name, value in told.items()}


def _plain(name: str) -> str:
    """MLflow takes only these characters in names."""
    return re.sub(r"[^\w./ -]", "_", name)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
