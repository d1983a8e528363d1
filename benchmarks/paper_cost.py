"""What a full study at the papers' scale would take: real training steps at the true shapes, measured here at two batch
sizes, give seconds an update and seconds a token; the presets say how many updates and tokens they ask for.

Writes benchmarks/results/paper_cost.json and prints a table (docs/cluster.md holds one). Run it on the machine that
you have: `python benchmarks/paper_cost.py --device cuda`. The control is a second measurement of the same steps. Only
training is counted: it is nearly all of the time.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from headprune.files import write_text
from headprune.lab.experiments.expand import trials_of
from headprune.lab.experiments.library import all_presets, find_preset
from headprune.lab.experiments.size_check import models_of
from headprune.lab.experiments.trial import Trial

RESULTS = Path(__file__).parent / "results" / "paper_cost.json"
# A step of each shape: where its model comes from (preset, step), and sentences x tokens of a batch.
SHAPES: dict[str, tuple[str, str, tuple[int, int]]] = {
    "BERT-base": ("michel-table-3", "classifier", (8, 64)),
    "Transformer-base": ("voita-table-2", "base-enru", (16, 32)),
    "Transformer, 16 heads": ("michel-table-1", "translator", (8, 32)),
    "Transformer, IWSLT": ("michel-figure-5", "iwslt-model", (16, 32)),
    "All-attention, words": ("shim-table-1", "writer", (4, 192)),
    "All-attention, characters": ("shim-table-2", "letters", (2, 512)),
}
# What the presets are given. Pairs: Voita et al. 2019 and Budhraja et al. 2020; GLUE: Wang et al. 2019. The mean
# lengths are assumptions, in sub-words of one side.
PAIRS = {"enru": 2_500_000, "ende": 2_500_000, "subtitles": 6_000_000}
PAIR_TOKENS = {"enru": 30, "ende": 30, "subtitles": 12}
GLUE = {"mnli": (392_702, 40), "qqp": (363_846, 30), "qnli": (104_743, 50), "sst2": (67_349, 14), "cola": (8_551, 11),
        "mrpc": (3_668, 53)}  # fmt: skip
GATED_STEP = 1.02  # of a training step (benchmarks/results/gate_overhead.json)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--device", default="cpu")
    asked.add_argument("--repeats", type=int, default=3)
    asked.add_argument("--stored", action="store_true", help="the stored times of a step, for presets that changed")
    given = asked.parse_args()
    if given.stored:
        result = json.loads(RESULTS.read_text())
        result["papers"] = costs(result["shapes"])
        write_text(RESULTS, json.dumps(result, indent=1) + "\n")
        print(table(result))
        return
    speeds = {name: measured(name, given.device, given.repeats) for name in SHAPES}
    result = {
        "benchmark": "paper_cost", "device": given.device, "machine": platform.machine(),
        "threads": torch.get_num_threads(), "torch": torch.__version__,
        "precision": "bfloat16 autocast", "shapes": speeds, "papers": costs(speeds),
        "assumed": {"pair_tokens": PAIR_TOKENS, "glue": {name: list(sizes) for name, sizes in GLUE.items()}},
    }  # fmt: skip
    write_text(RESULTS, json.dumps(result, indent=1) + "\n")
    print(table(result))


def measured(name: str, device: str, repeats: int) -> dict[str, float]:
    preset, step, (rows, length) = SHAPES[name]
    model = models_of(find_preset(preset), step)[0].to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    whole, half = (batch(model, count, length) for count in (rows, rows // 2))
    tokens = rows * length

    def step_of(inputs: Mapping[str, Any]) -> Callable[[], None]:
        def run() -> None:
            optimizer.zero_grad()
            with torch.autocast(device, dtype=torch.bfloat16):
                loss = model(**inputs).loss
            loss.backward()
            optimizer.step()
            if device != "cpu":
                torch.cuda.synchronize()

        return run

    times: dict[str, list[float]] = {"first": [], "again": [], "half": []}
    step_of(whole)()
    for _ in range(repeats):
        for way, inputs in (("first", whole), ("again", whole), ("half", half)):
            begun = time.perf_counter()
            step_of(inputs)()
            times[way].append(time.perf_counter() - begun)
    median = {way: statistics.median(found) for way, found in times.items()}
    per_token = max(0.0, median["first"] - median["half"]) / (tokens - tokens // 2)
    found = {
        "seconds_per_token": per_token, "seconds_per_update": max(0.0, median["first"] - per_token * tokens),
        "tokens": tokens, "control": median["again"] / median["first"],
        "parameters": sum(p.numel() for p in model.parameters()),
    }  # fmt: skip
    print(f"{name}: {per_token * 1e3:.3f} ms a token, {found['seconds_per_update']:.2f} s an update, "
          f"control {found['control']:.2f}")  # fmt: skip
    return found


def batch(model: Any, rows: int, length: int) -> dict[str, Any]:
    from headprune.structure.dummy_inputs import example_inputs
    from headprune.structure.run import to_model

    inputs = example_inputs(model, batch=rows, length=length)
    if "decoder_input_ids" in inputs:
        inputs["labels"] = inputs.pop("decoder_input_ids")
    else:
        classes = "Classification" in type(model).__name__
        inputs["labels"] = torch.zeros(rows, dtype=torch.long) if classes else inputs["input_ids"]
    return dict(to_model(model, inputs))


def costs(speeds: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, Any]]:
    """By paper: trials, those that train, tokens, and hours here; a trial that papers share counts for the first."""
    prints: dict[str, str] = {}
    presets = [preset for preset in all_presets() if "paper" in preset.scales]
    for preset in presets:
        for name in preset.scale("paper").inputs:
            prints.setdefault(name, f"{len(prints):016x}")
    corpora = {known: name for name, known in prints.items()}
    seen: set[str] = set()
    found: dict[str, dict[str, Any]] = {}
    for preset in presets:
        row = found.setdefault(preset.study, {"trials": 0, "trained": 0, "tokens": 0.0, "hours": 0.0, "longest": 0.0})
        for trial in trials_of(preset, "paper", {name: prints[name] for name in preset.scale("paper").inputs}):
            if trial.key() in seen:
                continue
            seen.add(trial.key())
            row["trials"] += 1
            work = training(trial, corpora)
            if work is not None:
                shape, updates, tokens = work
                speed = speeds[shape]
                hours = (tokens * speed["seconds_per_token"] + updates * speed["seconds_per_update"]) / 3600
                row["trained"] += 1
                row["tokens"] += tokens
                row["hours"] += hours
                row["longest"] = max(row["longest"], hours)
    return found


def training(trial: Trial, corpora: Mapping[str, str]) -> tuple[str, float, float] | None:
    """The shape that a trial trains, its updates, and the tokens that go through it."""
    command, options = trial.params.get("command"), trial.params["options"]
    if command not in ("train-mt", "train-lm", "finetune", "gates"):
        return None
    if command == "train-lm" or options.get("task") == "stream-lm":
        found = _language_model(trial, corpora, options)
    elif command == "train-mt" or options.get("task") == "translation":
        found = _translator(trial, corpora, options)
    else:
        examples, length = GLUE[options["task"]]
        shown = options["epochs"] * examples
        found = "BERT-base", shown / options.get("batch-size", 32), shown * length
    shape, updates, tokens = found
    longer = GATED_STEP if command == "gates" else 1.0
    return shape, longer * updates, longer * tokens


def _language_model(trial: Trial, corpora: Mapping[str, str], options: Mapping[str, Any]) -> tuple[str, float, float]:
    from headprune.tasks.text.presets import PRESETS

    text = next(corpora[known] for known in trial.params["inputs"].values())
    recipe = PRESETS["wikitext-103" if text == "wikitext" else "text8"].recipe
    updates = options.get("updates", recipe.updates)
    tokens = updates * options.get("batch-size", recipe.batch_size) * options.get("max-length", recipe.max_length)
    return "All-attention, words" if text == "wikitext" else "All-attention, characters", updates, tokens


def _translator(trial: Trial, corpora: Mapping[str, str], options: Mapping[str, Any]) -> tuple[str, float, float]:
    from headprune.tasks.translation.presets import PRESETS

    corpus = next(corpora[known] for known in trial.params["inputs"].values() if corpora[known] != "trees")
    name = {"wmt": "large", "iwslt": "iwslt"}.get(corpus, "base")
    recipe = PRESETS[name].recipe
    shape = {"large": "Transformer, 16 heads", "iwslt": "Transformer, IWSLT"}.get(name, "Transformer-base")
    an_update = options.get("batch-tokens", recipe.batch_tokens) * options.get("accumulate", recipe.accumulate)
    tokens = options.get("epochs", recipe.epochs) * PAIRS.get(corpus, 0) * PAIR_TOKENS.get(corpus, 0)
    updates = recipe.updates or tokens / an_update
    return shape, updates, updates * an_update


def table(result: Mapping[str, Any]) -> str:
    on_cpu = result["device"] == "cpu"
    unit, times = ("core-hours", result["threads"]) if on_cpu else ("hours on one device", 1)
    lines = [f"| paper | trials | that train | tokens | {unit} | longest trial |", "|---|---|---|---|---|---|"]
    for paper, row in result["papers"].items():
        lines.append(
            f"| {paper} | {row['trials']} | {row['trained']} | {row['tokens']:.1e} | {times * row['hours']:,.0f} | "
            f"{times * row['longest']:,.0f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
