"""`best` against every other way at the same budget, from the answers that cells left behind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.leaderboard.by_cost import BEST, NEIGHBOURS, CostSpec, cost_spec_of, is_by_cost

from headprune.stats import paired_bootstrap
from headprune.tasks.metrics import metrics


def rows_of(rows: Path, spec: CostSpec) -> Path:
    """Where the answers of a cell are kept."""
    return rows / (spec.name.replace("/", "_") + ".npy")


def keep(rows: Path, spec: CostSpec, found: Any) -> None:
    path = rows_of(rows, spec)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, found)


def compared(cells: Iterable[Mapping[str, Any]], rows: Path) -> list[dict[str, Any]]:
    """The cells whose comparison is new or another than they say: `best` minus the way, paired over examples."""
    changed = []
    for cell in cells:
        if not is_by_cost(cell) or cell["method"] == "best":
            continue
        spec = cost_spec_of(cell)
        best = CostSpec(spec.model, spec.data, spec.tuning, *BEST, spec.budget, spec.amount)
        if not (rows_of(rows, spec).is_file() and rows_of(rows, best).is_file()):
            continue
        mine, its = (np.load(rows_of(rows, one), allow_pickle=False) for one in (spec, best))
        statistic = None if spec.data == NEIGHBOURS else metrics[str(cell["metric"])].of
        gap = paired_bootstrap(mine, its, statistic=statistic, seed=spec.seed)
        assert gap.interval is not None
        against = {"change": gap.difference, "interval": [gap.interval.low, gap.interval.high]}
        if cell.get("against") != against:
            changed.append({**cell, "against": against})
    return changed
