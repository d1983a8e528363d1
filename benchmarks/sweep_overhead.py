"""What a sweep costs beside its trials: 1,000 trivial ones inline and on Ray with two workers, a store of 10,000, and
how much two workers of Ray bring to trials of one thread.

Writes benchmarks/results/sweep_overhead.json and prints a summary. The control is the same run of two workers twice.
"""

from __future__ import annotations

import json
import platform
import tempfile
import time
from pathlib import Path
from typing import Any

from headprune.files import write_text
from headprune.lab.experiments.ray_runner import RayRunner
from headprune.lab.experiments.store import Record, Store
from headprune.lab.experiments.sweep import Inline, run_sweep
from headprune.lab.experiments.trial import Trial

RESULTS = Path(__file__).parent / "results" / "sweep_overhead.json"
TARGETS = {"inline_ms": 20.0, "ray_ms": 60.0, "open_10000_s": 2.0, "two_workers_of_one": 0.6}


def trivial(count: int, start: int = 0) -> list[Trial]:
    return [Trial(work="echo", params={"number": number}, step="echo") for number in range(start, start + count)]


def timed(work: Any) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def busy(seconds: int, count: int, start: int) -> list[Trial]:
    return [Trial(work="spin", params={"options": {"number": start + n, "steps": seconds}}) for n in range(count)]


def main() -> None:
    import ray

    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        figures["inline_ms"] = timed(lambda: run_sweep(trivial(1000), Store(folder / "a"), Inline())) * 1000 / 1000
        store = Store(folder / "b")
        for trial in trivial(10_000):
            store.put(Record(trial=trial, status="done", result={"score": 0.5}))
        figures["open_10000_s"] = timed(lambda: sum(record.is_done for record in store))
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        runner = RayRunner()
        run_sweep(trivial(20, 50_000), Store(folder / "warm"), runner)
        figures["ray_ms"] = timed(lambda: run_sweep(trivial(1000), Store(folder / "c"), runner)) * 1000 / 1000
        alone, both = RayRunner(num_cpus=2, waiting=1), RayRunner(num_cpus=1)
        times: dict[str, list[float]] = {"one": [], "two": [], "two again": []}
        for round_ in range(2):
            for place, (way, performer) in enumerate((("one", alone), ("two", both), ("two again", both))):
                trials = busy(150, 8, 1000 * round_ + 100 * place)
                warm = busy(1, 4, 100_000 + 1000 * round_ + 100 * place)  # workers are started before the clock is
                run_sweep(warm, Store(folder / f"warm-{way}-{round_}"), performer)
                target = Store(folder / f"{way}-{round_}")
                times[way].append(timed(lambda trials=trials, target=target, p=performer: run_sweep(trials, target, p)))
        ray.shutdown()
    figures["two_workers_of_one"] = min(times["two"]) / min(times["one"])
    figures["control"] = min(times["two again"]) / min(times["two"])
    met = {name: figures[name] <= target for name, target in TARGETS.items()}
    for name, value in figures.items():
        print(f"{name}: {value:.3f}" + (f" (target {TARGETS[name]})" if name in TARGETS else ""))
    machine = {"processor": platform.processor() or platform.machine(), "ray": ray.__version__}
    result = {"benchmark": "sweep_overhead", "figures": figures, "targets": TARGETS, "met": met, "machine": machine}
    write_text(RESULTS, json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
