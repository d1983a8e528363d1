"""How long a page of 1,000 trials takes and how large it is: 250 models of BERT's size, each scored, ablated, followed
along a curve in three orders, and fine-tuned with fewer heads. The numbers are made up; their shape is what commands
store.

Writes benchmarks/results/report_speed.json and prints a summary. The control is the same page twice.
"""

from __future__ import annotations

import json
import platform
import random
import tempfile
import time
from pathlib import Path
from typing import Any

from headprune.files import write_text
from headprune.lab.experiments.store import Record, Store
from headprune.lab.experiments.trial import Trial
from headprune.lab.report import gather, html_page

RESULTS = Path(__file__).parent / "results" / "report_speed.json"
TARGETS = {"seconds": 20.0, "megabytes": 8.0}
LAYERS, HEADS, MODELS = 12, 12, 250
SITES = {f"encoder.{layer}": HEADS for layer in range(LAYERS)}


def results(chosen: random.Random) -> dict[str, dict[str, Any]]:
    """What four commands would store of one model."""

    def cells() -> dict[str, list[float]]:
        return {site: [chosen.random() for _ in range(count)] for site, count in SITES.items()}

    sums = cells()
    squares = {site: [x * x for x in row] for site, row in sums.items()}
    rows = {
        f"{site}:{head}": {
            "score": chosen.random(),
            "change": chosen.gauss(0, 0.01),
            "p_holm": chosen.random(),
            "p": chosen.random(),
            "p_exact": chosen.random(),
            "p_bh": chosen.random(),
            "flipped": chosen.random(),
        }
        for site, count in SITES.items()
        for head in range(count)
    }
    curves = {
        order: [
            {
                "order": order,
                "metric": "accuracy",
                "heads": LAYERS * HEADS,
                "points": [_point(n, chosen) for n in range(11)],
            }
        ]
        for order in ("sensitivity", "ablation", "random")
    }
    kept = {site: sorted(chosen.sample(range(count), chosen.randint(0, count))) for site, count in SITES.items()}
    dev = {"metric": "accuracy", "score": chosen.random(), "interval": [0.1, 0.9], "level": 0.95, "examples": 872,
           "loss": 0.3}  # fmt: skip
    about = {"task": "sst2", "metric": "accuracy", "split": "dev", "seed": 1}
    scores = {"method": "sensitivity", "data": "sst2 train", "sums": sums, "squares": squares}
    return {
        "score": {**scores, "counts": dict.fromkeys(SITES, 512)},
        "ablate": {**about, "heads": rows, "base": dev, "all_but_one": False, "components": {}},
        "curve": {**about, "curves": curves, "examples": 872, "removed": False},
        "finetune": {**about, "kept": kept, "original": SITES, "dev": dev},
    }


def _point(step: int, chosen: random.Random) -> dict[str, Any]:
    gone = step * LAYERS * HEADS // 10
    left = set(chosen.sample(range(LAYERS * HEADS), LAYERS * HEADS - gone))
    kept = {site: [head for head in range(HEADS) if layer * HEADS + head in left] for layer, site in enumerate(SITES)}
    score = 0.9 - step * step / 250 + chosen.gauss(0, 0.01)
    return {"share": step / 10, "pruned": gone, "score": score, "kept": kept}


def fill(store: Store) -> None:
    chosen = random.Random(0)
    for model in range(MODELS):
        for command, result in results(chosen).items():
            params = {"command": command, "arguments": [f"model-{model}"], "options": {}, "values": {}}
            trial = Trial(work="command", params=params, seed=model % 5, step=command, label=f"{command} {model}")
            store.put(Record(trial=trial, status="done", result=result, seconds=1.0))


def main() -> None:
    times = []
    with tempfile.TemporaryDirectory() as name:
        store = Store(Path(name))
        fill(store)
        for _ in range(2):
            begun = time.perf_counter()
            page = html_page(gather([store.folder]))
            times.append(time.perf_counter() - begun)
        count = len(store)
        assert not gather([store.folder]).problems, "the benchmark is of what commands store"
    figures = {"seconds": max(times), "megabytes": len(page.encode()) / 1e6, "trials": count}
    figures["control"] = times[1] / times[0]
    met = {name: figures[name] <= target for name, target in TARGETS.items()}
    for name, value in figures.items():
        print(f"{name}: {value:.3f}" + (f" (target {TARGETS[name]})" if name in TARGETS else ""))
    machine = {"processor": platform.processor() or platform.machine()}
    result = {"benchmark": "report_speed", "figures": figures, "targets": TARGETS, "met": met, "machine": machine}
    write_text(RESULTS, json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
