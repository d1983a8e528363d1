"""What finding and removing heads costs: `find_heads` and `prune_(verify=False)` here and in an earlier checkout.

A 12 x 12 x 768 BERT (random weights), half of its heads removed at random. Each version works in a process of its own
on one thread; they take turns, and the processor time of each turn is taken, with an A/A control (this version in two
processes). Give the folder of a checkout of the commit to compare with (44180f0 is the yardstick, `git worktree add`):

    python benchmarks/find_and_prune.py --yardstick FOLDER

Writes benchmarks/results/find_and_prune.json and prints a summary.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from headprune.cost.measurement import ratio
from headprune.files import write_text

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "find_and_prune.json"
ROUNDS, TARGET = 15, 0.5

WORK = """
import copy, sys, time, torch, headprune as hp
from transformers import BertConfig, BertModel
torch.set_num_threads(1)
torch.manual_seed(0)
whole = BertModel(BertConfig(num_hidden_layers=12, num_attention_heads=12, hidden_size=768)).eval()
print("ready", flush=True)
for _ in sys.stdin:
    model = copy.deepcopy(whole)
    start = time.process_time()
    heads = hp.find_heads(model)
    hp.prune_(model, hp.HeadMask.random(heads, keep=0.5, seed=0), verify=False)
    print(time.process_time() - start, flush=True)
"""


class Worker:
    """One version of headprune, in a process that does one job whenever it is asked to."""

    def __init__(self, folder: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": str(folder / "src"), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self._line()

    def seconds(self) -> float:
        assert self.process.stdin is not None, "it was opened as a pipe"
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return float(self._line())

    def _line(self) -> str:
        assert self.process.stdout is not None, "it was opened as a pipe"
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"a worker ended with code {self.process.wait()}: see its message above")
        return line


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--yardstick", type=Path, required=True, help="checkout of the commit to compare with")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args(arguments)
    if not (options.yardstick / "src" / "headprune").is_dir():
        raise SystemExit(f"{options.yardstick} has no src/headprune: give the folder of a checkout.")
    workers = [Worker(HERE.parent), Worker(HERE.parent), Worker(options.yardstick)]
    times: list[list[float]] = [[] for _ in workers]
    for number in range(-2, options.rounds):  # two rounds to warm up
        for step in range(len(workers)):
            place = (number + step) % len(workers)
            seconds = workers[place].seconds()
            if number >= 0:
                times[place].append(seconds)
    control, found = ratio(times[0], times[1]), ratio(times[0], times[2])
    commit = subprocess.run(
        ["git", "-C", str(options.yardstick), "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
    )
    figure = {
        "median_ratio": found[0],
        "quartiles": found[1:],
        "seconds": statistics.median(times[0]),
        "yardstick_seconds": statistics.median(times[2]),
        "target": TARGET,
        "met": found[0] <= TARGET,
    }
    result = {
        "benchmark": "find_and_prune",
        "model": "BertModel, 12 x 12 x 768, random weights (seed 0), float32; half of the heads removed, not verified",
        "yardstick": commit.stdout.strip() or "unknown",
        "rounds": options.rounds,
        "machine": {"processor": platform.processor() or platform.machine(), "threads": 1},
        "control": control[0],
        "control_quartiles": control[1:],
        "figures": {"processor_time": figure},
    }
    write_text(RESULTS, json.dumps(result, indent=1) + "\n")
    print(f"find_heads and prune_: {found[0]:.3f} of the yardstick's processor time ({figure['seconds']:.3f} s, "
          f"{figure['yardstick_seconds']:.3f} s; target {TARGET}; A/A {control[0]:.3f})")  # fmt: skip


if __name__ == "__main__":
    main()
