"""Gather what `classifier.sh` left into docs/results/data: collect.py RUNS, a folder of folders TASK-SEED."""

from __future__ import annotations

import json
import platform
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"


def gathered(run: Path) -> dict[str, Any]:
    """The results of one seed, without the lists of kept heads at every point (they follow from the scores)."""
    curve = _read(run / "curve" / "curve.json")
    for runs in curve["curves"].values():
        for line in runs:
            for point in line["points"]:
                del point["kept"]
    seconds = [json.loads(line) for line in (run / "seconds.jsonl").read_text().splitlines()]
    pruned = _read(run / "prune.json")
    return {
        "finetune": _read(run / "model" / "finetune.json"),
        "scores": _read(run / "scores" / "scores.json")["scores"],
        "ablation": _read(run / "ablation" / "ablation.json"),
        "curve": curve,
        "prune": {name: pruned[name] for name in ("heads", "removed", "budget", "difference")},
        "seconds": {entry["step"]: entry["seconds"] for entry in seconds},
        "versions": {name: version(name) for name in ("torch", "transformers", "numpy", "scipy")}
        | {"python": platform.python_version()},
    }


def _read(path: Path) -> Any:
    return json.loads(path.read_text())


def main(runs: Path) -> None:
    for run in sorted(runs.glob("*-*")):
        if not (run / "prune.json").is_file() or not (run / "prune.json").stat().st_size:
            continue
        task, seed = run.name.rsplit("-", 1)
        place = DATA / f"{task}-minilm" / f"seed-{seed}.json"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps(gathered(run), separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
