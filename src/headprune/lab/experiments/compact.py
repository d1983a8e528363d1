"""A folder of results as it is kept: the figures of every trial, without pages of heads and without models."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from headprune.errors import StoreError
from headprune.files import write_text
from headprune.lab.experiments.store import Store

# Long lists that no page shows: what is kept of each head at each point, training step by step, settings told twice.
_LEFT_OUT = {"trajectory", "kept", "original", "prob_open", "offsets", "objective", "data", "by_role", "recipe"}
DIGITS = 6


def compacted(store: Store, target: Path) -> int:
    """Copy what was finished into a folder that holds nothing else; how many trials. `headprune report` reads it."""
    found = list(store)
    if not found:
        raise StoreError(f"'{store.folder}' holds no trials: expected a folder that `headprune run --out` wrote.")
    goal = Store(target)
    for record in found:
        if record.is_done:
            small = replace(record, result=_small(record.result), environment=_where(record.environment))
            write_text(goal.path(record.trial.key()), json.dumps(small.to_dict(), separators=(",", ":")) + "\n")
    if (store.folder / "run.json").is_file():
        shutil.copyfile(store.folder / "run.json", goal.folder / "run.json")
    return len(goal)


def _small(value: Any, name: str = "") -> Any:
    if isinstance(value, Mapping):
        if name == "heads" and value and all(isinstance(row, Mapping) for row in value.values()):
            return {head: {"score": _small(row["score"])} for head, row in value.items() if "score" in row}
        return {key: _small(inner, key) for key, inner in value.items() if key not in _LEFT_OUT}
    if isinstance(value, list):
        return [_small(inner) for inner in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def _where(environment: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in environment.items() if name != "host"}
