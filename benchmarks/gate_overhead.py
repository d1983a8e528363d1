"""What gates cost in training: a gated step against a plain one, and gates alone against a plain step.

A 12 x 12 x 768 classifier (BERT-base shape, random weights), batch 16, length 64; a step is forward, penalty, backward
(no optimiser). Ratios are taken in interleaved rounds with an A/A control. Writes
benchmarks/results/gate_overhead.json and prints a summary.
"""

from __future__ import annotations

import copy
import json
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers import BertConfig, BertForSequenceClassification

import headprune as hp
from headprune.cost.measurement import interleaved, ratio
from headprune.files import write_text
from headprune.structure.dummy_inputs import example_inputs

BATCH, LENGTH, ROUNDS = 16, 64, 12
RESULTS = Path(__file__).parent / "results" / "gate_overhead.json"


def step(model: nn.Module, batch: dict[str, Any], objective: hp.Objective | None) -> Callable[[], None]:
    """One forward and backward, as the Trainer does them."""
    model.train()

    def run() -> None:
        model.zero_grad(set_to_none=True)
        loss = model(**batch).loss
        if objective is not None:
            loss = loss + objective.loss(hp.gates_of(model), 0)
        loss.backward()

    return run


def main() -> None:
    torch.manual_seed(0)
    plain = BertForSequenceClassification(BertConfig())
    batch = example_inputs(plain, batch=BATCH, length=LENGTH) | {"labels": torch.arange(BATCH) % 2}
    gated, alone = copy.deepcopy(plain), copy.deepcopy(plain)
    for model in (gated, alone):
        hp.attach_gates(model)
    hp.choose_trainable_(alone, "gates")
    objective = hp.Objective(weight=0.02)
    tasks = [step(plain, batch, None), step(plain, batch, None), step(gated, batch, objective),
             step(alone, batch, objective)]  # fmt: skip
    times = interleaved(tasks, ROUNDS, warmup=2)
    control = ratio(times[0], times[1])
    best = min(times[0] + times[1])
    ratios = {"gated": min(times[2]) / best, "gates_only": min(times[3]) / best}
    targets = {"gated": 1.05, "gates_only": 0.75}
    result = {
        "benchmark": "gate_overhead",
        "model": "BERT-base shape classifier, 12 x 12 x 768, random weights (seed 0), float32, sdpa, dropout on",
        "batch": BATCH,
        "length": LENGTH,
        "rounds": ROUNDS,
        "machine": {
            "processor": platform.processor() or platform.machine(),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
        "control": control[0],
        "control_quartiles": control[1:],
        "figures": {
            name: {
                "minimum_ratio": ratios[name],
                "median_ratio": ratio(times[place], times[0])[0],
                "target": targets[name],
                "met": ratios[name] <= targets[name],
            }
            for place, name in ((2, "gated"), (3, "gates_only"))
        },
    }
    write_text(RESULTS, json.dumps(result, indent=1) + "\n")
    for name, figure in result["figures"].items():
        print(f"{name}: {figure['minimum_ratio']:.3f} of a plain step (target {figure['target']}; median "
              f"{figure['median_ratio']:.3f}; A/A {control[0]:.3f})")  # fmt: skip


if __name__ == "__main__":
    main()
