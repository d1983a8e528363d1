"""How fast pruned models are, against what their MACs promise.

A 12 x 12 x 768 model (BERT-base shape, random weights), half and three quarters of the heads removed evenly, length
128. Every ratio is the median over rounds in which all variants run once, in turning order, together with a second
series of the unpruned model as an A/A control. Writes benchmarks/results/pruned_speed.json and prints a summary.
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
from headprune.cost.macs import count_macs
from headprune.cost.measurement import interleaved, ratio
from headprune.files import write_text
from headprune.structure.dummy_inputs import example_inputs

LENGTH = 128
PAIRS = 15
TARGETS = {8: 0.90, 32: 0.95}
RESULTS = Path(__file__).parent / "results" / "pruned_speed.json"


def model_of_bert_base_shape() -> nn.Module:
    torch.manual_seed(0)
    return BertModel(BertConfig(), add_pooling_layer=False).eval()


def pruned_evenly(model: nn.Module, keep: int) -> nn.Module:
    """The first `keep` heads of every site: which heads stay does not matter for speed."""
    heads = hp.find_heads(model)
    mask = hp.HeadMask.from_dict(heads, {site.id: range(keep) for site in heads})
    return hp.prune_(copy.deepcopy(model), mask, verify=False)


class NoAttention(nn.Module):
    """What an emptied block comes down to when written by hand: the norm of the input plus a bias."""

    def __init__(self, attention: Any) -> None:
        super().__init__()
        self.bias, self.norm = attention.output.dense.bias, attention.output.LayerNorm

    def forward(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, None]:
        return self.norm(hidden_states + self.bias), None


def forwards(model: nn.Module, batch: dict[str, Any]) -> Any:
    return lambda: model(**batch)


def speedups(model: nn.Module, variants: dict[str, nn.Module], size: int) -> dict[str, Any]:
    """Measured against predicted, in one interleaved run."""
    batch = example_inputs(model, batch=size, length=LENGTH)
    whole = count_macs(model, hp.find_heads(model), batch).total
    tasks = [forwards(model, batch), forwards(model, batch), *(forwards(v, batch) for v in variants.values())]
    with torch.inference_mode():
        times = interleaved(tasks, PAIRS, warmup=1)
    control = ratio(times[0], times[1])
    found: dict[str, Any] = {"control": control[0], "control_quartiles": control[1:]}
    for (name, variant), series in zip(variants.items(), times[2:], strict=True):
        predicted = whole / count_macs(variant, hp.find_heads(variant), batch).total
        measured = ratio(times[0], series)
        found[name] = {
            "predicted_by_macs": predicted,
            "measured": measured[0],
            "measured_quartiles": measured[1:],
            "reached": measured[0] / predicted,
            "target": TARGETS[size],
            "met": measured[0] / predicted >= TARGETS[size],
        }
    return found


def examples_per_second(model: nn.Module, pruned: nn.Module) -> dict[str, Any]:
    """Michel et al., Table 4: examples a second at four batch sizes, mean and deviation of six."""
    found = {}
    for size in (1, 4, 16, 64):
        batch = example_inputs(model, batch=size, length=LENGTH)
        with torch.inference_mode():
            times = interleaved([forwards(model, batch), forwards(pruned, batch)], 6, warmup=1)
        rates = [[size / seconds for seconds in series] for series in times]
        found[str(size)] = {
            name: {"mean": statistics.mean(rate), "deviation": statistics.stdev(rate)}
            for name, rate in zip(("original", "pruned"), rates, strict=True)
        } | {"gain": statistics.mean(rates[1]) / statistics.mean(rates[0]) - 1}
    return found


def free_things(model: nn.Module) -> dict[str, Any]:
    """A mask of ones against no mask, and emptied sites against blocks written without attention."""
    batch = example_inputs(model, batch=8, length=LENGTH)
    heads = hp.find_heads(model)
    odd = [site.id for site in heads if site.layer % 2]
    emptied = hp.prune_(copy.deepcopy(model), hp.HeadMask.full(heads).without(*odd), verify=False)
    by_hand = copy.deepcopy(model)
    for index, layer in enumerate(by_hand.encoder.layer):
        if index % 2:
            layer.attention = NoAttention(layer.attention)
    ones = {site.id: torch.ones(site.num_heads) for site in heads}

    def with_ones() -> None:
        with hp.masked(model, ones, heads=heads):
            model(**batch)

    def with_full_mask() -> None:
        with hp.masked(model, hp.HeadMask.full(heads), heads=heads):
            model(**batch)

    tasks = [forwards(model, batch), forwards(model, batch), with_ones, with_full_mask]
    tasks += [forwards(emptied, batch), forwards(by_hand, batch)]
    with torch.inference_mode():
        times = interleaved(tasks, PAIRS, warmup=1)
    control = ratio(times[0], times[1])
    spread = max(abs(q - 1) for q in control[1:])
    found: dict[str, Any] = {"control": control[0], "control_quartiles": control[1:], "spread": spread}
    pairs = {
        "numbers_of_one": (times[2], times[0]),
        "full_mask": (times[3], times[0]),
        "emptied_sites": (times[4], times[5]),
    }
    for name, (series, baseline) in pairs.items():
        cost = ratio(series, baseline)
        found[name] = {"cost": cost[0], "quartiles": cost[1:], "met": cost[0] - 1 <= spread}
    return found


def pruning_seconds(model: nn.Module) -> dict[str, Any]:
    seconds = []
    for seed in range(5):
        copied = copy.deepcopy(model)
        mask = hp.HeadMask.random(hp.find_heads(model), keep=0.5, seed=seed)
        start = time.perf_counter()
        hp.prune_(copied, mask, verify=False)
        seconds.append(time.perf_counter() - start)
    return {
        "median": statistics.median(seconds),
        "all": seconds,
        "target": 2.0,
        "met": statistics.median(seconds) < 2.0,
    }


def main() -> None:
    model = model_of_bert_base_shape()
    variants = {"half": pruned_evenly(model, 6), "three_quarters": pruned_evenly(model, 3)}
    result = {
        "benchmark": "pruned_speed",
        "model": "BERT-base shape, 12 layers x 12 heads x 768, random weights (seed 0), float32, sdpa",
        "length": LENGTH,
        "rounds": PAIRS,
        "machine": {
            "processor": platform.processor() or platform.machine(),
            "threads": torch.get_num_threads(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
        "prune_seconds": pruning_seconds(model),
        "free": free_things(model),
        "speedup": {str(size): speedups(model, variants, size) for size in TARGETS},
        "examples_per_second": examples_per_second(model, variants["half"]),
    }
    write_text(RESULTS, json.dumps(result, indent=1) + "\n")
    for size, found in result["speedup"].items():
        low, high = found["control_quartiles"]
        print(f"batch {size}: A/A {found['control']:.3f} ({low:.3f} to {high:.3f})")
        for name in variants:
            f = found[name]
            print(
                f"  {name} removed: {f['measured']:.3f} times as fast, MACs predict {f['predicted_by_macs']:.3f}, "
                f"reached {f['reached']:.3f} (target {f['target']:.2f}, {'met' if f['met'] else 'MISSED'})"
            )
    free = result["free"]
    print(
        f"cost of nothing (A/A spread {free['spread']:.3f}): "
        + ", ".join(
            f"{name} {free[name]['cost']:.3f} ({'met' if free[name]['met'] else 'MISSED'})"
            for name in ("numbers_of_one", "full_mask", "emptied_sites")
        )
    )
    seconds = result["prune_seconds"]
    print(f"prune_ without verification: {seconds['median']:.2f} s (target {seconds['target']} s)")
    for size, row in result["examples_per_second"].items():
        print(
            f"batch {size}: {row['original']['mean']:.1f} ± {row['original']['deviation']:.1f} -> "
            f"{row['pruned']['mean']:.1f} ± {row['pruned']['deviation']:.1f} examples/s ({row['gain']:+.1%})"
        )


if __name__ == "__main__":
    main()
