"""Whether `--speedup` gives what was asked for, timed by somebody else.

A 12 x 12 x 768 model (BERT-base shape, random weights), length 128: `mask_for_speedup` looks for masks that make it
1.1, 1.2 and 1.3 times as fast. Each mask is then pruned into a fresh model and timed here, by a loop of its own,
against the whole model, and the whole model against itself as an A/A control. Writes
benchmarks/results/speedup_target.json.
"""

from __future__ import annotations

import copy
import json
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers import BertConfig, BertModel

import headprune as hp
from headprune.budgets import Selection
from headprune.budgets.kinds.speedup import mask_for_speedup
from headprune.files import write_text

BATCH, LENGTH, ROUNDS = 1, 128, 41
TARGETS = (1.1, 1.2, 1.3)
WITHIN = 0.05
RESULTS = Path(__file__).parent / "results" / "speedup_target.json"


def seconds(model: nn.Module, tokens: torch.Tensor) -> float:
    began = time.perf_counter()
    model(input_ids=tokens)
    return time.perf_counter() - began


def speedup(whole: nn.Module, other: nn.Module, tokens: torch.Tensor) -> tuple[float, float, float]:
    """How many times as fast the other is: the median over rounds of both, in turning order, and its quartiles."""
    ratios = []
    with torch.inference_mode():
        for round_ in range(ROUNDS + 2):
            order = (whole, other) if round_ % 2 else (other, whole)
            times = {id(model): 0.0 for model in order}
            for model in order:
                times[id(model)] = seconds(model, tokens)
            ratios.append(times[id(whole)] / times[id(other)])
    low, middle, high = statistics.quantiles(ratios[2:], n=4)  # two rounds to warm up
    return middle, low, high


def main() -> None:
    torch.manual_seed(0)
    whole = BertModel(BertConfig(), add_pooling_layer=False).eval()
    heads = hp.find_heads(whole)
    scores = hp.score(whole, method="random", seed=0)
    tokens = torch.randint(1000, 20000, (BATCH, LENGTH), generator=torch.Generator().manual_seed(1))
    found: dict[str, Any] = {}
    for target in TARGETS:
        began = time.perf_counter()
        hit = mask_for_speedup(Selection(scores=scores, heads=heads, model=whole, batch=BATCH, length=LENGTH), target)
        looking = time.perf_counter() - began
        pruned = hp.prune_(copy.deepcopy(whole), hit.mask, verify=False)
        control = speedup(whole, copy.deepcopy(whole), tokens)
        measured = speedup(whole, pruned, tokens)
        found[str(target)] = {
            "heads": len(hit.mask), "measured_by_headprune": hit.speedup, "measured": measured[0],
            "quartiles": measured[1:], "control": control[0], "control_quartiles": control[1:],
            "seconds_to_find": looking, "target": target, "within": WITHIN,
            "met": abs(measured[0] / target - 1) <= WITHIN,
        }  # fmt: skip
        print(
            f"{target} asked for: {measured[0]:.3f} ({measured[1]:.3f} to {measured[2]:.3f}), A/A {control[0]:.3f} "
            f"({control[1]:.3f} to {control[2]:.3f}), {len(hit.mask)} of {len(heads)} heads, found in {looking:.0f} s: "
            f"{'met' if found[str(target)]['met'] else 'MISSED'}"
        )
    result = {
        "benchmark": "speedup_target",
        "model": "BERT-base shape, 12 layers x 12 heads x 768, random weights (seed 0), float32, sdpa; random order",
        "batch": BATCH,
        "length": LENGTH,
        "rounds": ROUNDS,
        "machine": {
            "processor": platform.processor() or platform.machine(),
            "threads": torch.get_num_threads(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
        "speedups": found,
    }
    write_text(RESULTS, json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
