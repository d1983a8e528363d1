"""What scoring costs, against a training step and against the plain way.

A 12 x 12 x 768 classifier (BERT-base shape, random weights), batch 16, length 64. Ratios are taken in interleaved
rounds with an A/A control. Writes benchmarks/results/scoring_speed.json and prints a summary.
"""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers import BertConfig, BertForSequenceClassification

import headprune as hp
from headprune.cost.measurement import interleaved, live_bytes, ratio
from headprune.files import write_text
from headprune.heads import HeadId
from headprune.scoring.ablation_engine import ablate, losses
from headprune.scoring.context import ExampleLoss, ScoringContext, evaluation
from headprune.structure.dummy_inputs import example_inputs

BATCH, LENGTH, ROUNDS = 16, 64, 12
RESULTS = Path(__file__).parent / "results" / "scoring_speed.json"


def classifier() -> tuple[nn.Module, dict[str, Any]]:
    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig()).eval()
    batch = example_inputs(model, batch=BATCH, length=LENGTH)
    return model, batch | {"labels": torch.arange(BATCH) % 2}


def sensitivity_against_training(model: nn.Module, batch: dict[str, Any]) -> dict[str, Any]:
    heads = hp.find_heads(model)

    def step() -> None:
        model.zero_grad(set_to_none=True)
        model(**batch).loss.backward()

    def scoring() -> None:
        hp.score(model, [batch], heads=heads)

    times = interleaved([step, step, scoring], ROUNDS, warmup=1)
    control = ratio(times[0], times[1])
    best = min(times[2]) / min(times[0] + times[1])
    memory = {"training_step": live_bytes(step), "scoring": live_bytes(scoring)}
    share = memory["scoring"] / memory["training_step"]
    return {
        "control": control[0],
        "control_quartiles": control[1:],
        "minimum_ratio": best,
        "median_ratio": ratio(times[2], times[0])[0],
        "target": 0.75,
        "met": best <= 0.75,
        "memory": {**memory, "ratio": share, "target": 1.2, "met": share <= 1.2},
    }


def ablation_against_plain(model: nn.Module, batch: dict[str, Any]) -> dict[str, Any]:
    """All 144 heads, both ways, turn by turn: the quick way and the plain way of one pass over all heads each."""
    heads = hp.find_heads(model)
    full = hp.HeadMask.full(heads)
    shares: list[float] = []

    def run(reuse: bool) -> Any:
        def task() -> None:
            with evaluation(model):
                job = ScoringContext(model=model, heads=heads, batches=[batch], loss=ExampleLoss())
                found = ablate(job, lambda s, h: full.without(HeadId(s.id, h)), losses(job), reuse=reuse)
            if reuse:
                shares.append(found.share_reused)

        return task

    times = interleaved([run(False), run(True), run(True)], 1, warmup=0)
    gain = times[0][0] / (0.5 * (times[1][0] + times[2][0]))
    return {
        "seconds": {"plain": times[0][0], "reusing": [times[1][0], times[2][0]]},
        "control": times[1][0] / times[2][0],
        "gain": gain,
        "share_reused": shares[0],
        "target": 1.7,
        "met": gain >= 1.7,
    }


def main() -> None:
    model, batch = classifier()
    result = {
        "benchmark": "scoring_speed",
        "model": "BERT-base shape classifier, 12 x 12 x 768, random weights (seed 0), float32, sdpa",
        "batch": BATCH,
        "length": LENGTH,
        "rounds": ROUNDS,
        "machine": {
            "processor": platform.processor() or platform.machine(),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
        "sensitivity": sensitivity_against_training(model, batch),
        "ablation": ablation_against_plain(model, batch),
    }
    write_text(RESULTS, json.dumps(result, indent=1) + "\n")
    s, a = result["sensitivity"], result["ablation"]
    print(f"sensitivity: {s['minimum_ratio']:.3f} of a training step (target {s['target']}; A/A {s['control']:.3f})")
    print(f"memory: {s['memory']['ratio']:.3f} of a training step's (target {s['memory']['target']})")
    print(f"ablation of 144 heads: {a['gain']:.2f} times the plain way (target {a['target']}; A/A {a['control']:.3f})")


if __name__ == "__main__":
    main()
