"""Speed of translation with half the heads removed: sentences a second by beam search, batch 1 and 32.

Transformer-base (6 + 6 layers, 8 heads, width 512, feed-forward 2048, 10,000 subwords, random weights): beam 5, sources
of 20 tokens, translations of exactly 20 tokens, so that every model does the same number of steps. Half of the heads of
every component are removed at random. Times are taken in interleaved rounds with an A/A control; what the MACs predict
is the ratio of the multiply-accumulate operations of the whole search. Writes
benchmarks/results/translation_speed.json and prints a summary.
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

import headprune as hp
from headprune.cost.macs import count_macs_of
from headprune.cost.measurement import interleaved, ratio
from headprune.files import write_text
from headprune.tasks.translation.presets import Shape, new_translator

SHAPE = Shape(layers=6, width=512, heads=8, feed_forward=2048, vocabulary=10_000)
BEAMS, LENGTH, TARGET = 5, 20, 0.90
ROUNDS = {1: 12, 32: 8}
RESULTS = Path(__file__).parent / "results" / "translation_speed.json"


class Vocabulary:
    """As much of a tokenizer as a new model asks for."""

    pad_token_id, bos_token_id, eos_token_id = 0, 1, 2

    def __len__(self) -> int:
        return SHAPE.vocabulary


def translation(model: Any, batch: int) -> Callable[[], None]:
    generator = torch.Generator().manual_seed(batch)
    tokens = torch.randint(3, SHAPE.vocabulary, (batch, LENGTH), generator=generator)
    lengths = {"min_new_tokens": LENGTH, "max_new_tokens": LENGTH, "max_length": None}

    def run() -> None:
        with torch.inference_mode():
            model.generate(
                input_ids=tokens, attention_mask=torch.ones_like(tokens), num_beams=BEAMS, do_sample=False, **lengths
            )

    return run


def main() -> None:
    transformers.logging.set_verbosity_error()
    whole = new_translator(SHAPE, Vocabulary(), seed=0).eval()
    half = hp.prune_(copy.deepcopy(whole), hp.pattern(hp.find_heads(whole), "24/24/24", seed=0))
    figures = {}
    for batch, rounds in ROUNDS.items():
        tasks = [translation(model, batch) for model in (whole, whole, half)]
        predicted = count_macs_of(tasks[0]) / count_macs_of(tasks[2])
        times = interleaved(tasks, rounds, warmup=1)
        speedup, low, high = ratio(times[0], times[2])
        control = ratio(times[0], times[1])
        figures[f"batch_{batch}"] = {
            "sentences_per_second": {"whole": batch / min(times[0]), "half": batch / min(times[2])},
            "speedup": speedup,
            "speedup_quartiles": [low, high],
            "predicted_by_macs": predicted,
            "of_predicted": speedup / predicted,
            "control": control[0],
            "control_quartiles": control[1:],
            "rounds": rounds,
            **({"target": TARGET, "met": speedup / predicted >= TARGET} if batch == 32 else {}),
        }
        told = figures[f"batch_{batch}"]
        print(f"batch {batch}: {speedup:.3f} times as fast, {told['of_predicted']:.3f} of what the MACs predict "
              f"({predicted:.3f}); A/A {control[0]:.3f}")  # fmt: skip
    result = {
        "benchmark": "translation_speed",
        "model": "Transformer-base shape, 10,000 subwords, pre-norm, random weights (seed 0), float32, sdpa",
        "beams": BEAMS,
        "length": LENGTH,
        "machine": {
            "processor": platform.processor() or platform.machine(),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
        "figures": figures,
    }
    write_text(RESULTS, json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
