"""What each ingredient of `best` buys: the same job with one of them changed at a time, on development tasks.

    python -m benchmarks.ingredients --data-dir DATA --model minilm/cola=FOLDER --model smollm2/wikitext2=FOLDER

A cell is a model, a budget, an ingredient and a seed of the calibration data; it tells how near the answers are to the
whole model's on the dev examples (the test text of WikiText-2), of which nothing was fitted to any. Cells that are in
the file already are not computed again; ONLY cells whose names contain --only.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from headprune.checkpoint.load_model import load_model
from headprune.files import loads, write_text
from headprune.jobs.options.base import TaskOptions
from headprune.scoring.closeness import WholeAnswers
from headprune.scoring.context import ExampleLoss, evaluation
from headprune.shrink import Shrinker
from headprune.tasks.data import TaskData, match_padding_, open_task

RESULTS = Path(__file__).parent / "results" / "ingredients.json"
TEXTS = ("wikitext2",)
LENGTHS = {"mrpc": 128, "wikitext2": 128}  # tokens an example; 64 elsewhere
CALIBRATION, CALIBRATION_TEXTS = 512, 64  # of which `shrink` holds a quarter out
TEST_TEXTS = 40  # pieces of running text to compare on

INGREDIENTS: dict[str, dict[str, Any]] = {
    "best": {},
    "without a repair": {"recover": "none"},
    "with one strength of the fit (1e-4)": {"ridge": 1e-4},
    "aimed at the whole model's stream": {"recover": "stream"},
    "with levels shifted between sites": {"shifts": 6.0},
    "scores that do not see the loss": {"method": "reconstruction", "recover": "least-squares"},
    "scores that do not see a repair": {"method": "fisher", "recover": "least-squares"},
    "without labels": {},
}
BUDGETS = {
    "minilm": (("macs", 0.4), ("macs", 0.2), ("macs", 0.1), ("prune", 0.25), ("prune", 0.5), ("prune", 0.75)),
    "smollm2": (("macs", 0.8), ("macs", 0.6), ("prune", 1 / 3), ("prune", 2 / 3)),
}


@dataclass(frozen=True)
class Cell:
    model: str
    data: str
    budget: str
    amount: float
    ingredient: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.model}/{self.data}/{self.budget}/{self.amount:.2f}/{self.ingredient}/{self.seed}"


def cells(places: Mapping[str, str], seeds: range) -> Iterator[Cell]:
    for place in places:
        model, data = place.split("/")
        for seed in seeds:
            for budget, amount in BUDGETS[model]:
                for ingredient in INGREDIENTS:
                    yield Cell(model, data, budget, amount, ingredient, seed)


def opened(cell: Cell, folder: str, data_dir: Path) -> TaskData:
    is_text = cell.data in TEXTS
    options = TaskOptions(
        task="causal-lm" if is_text else cell.data, data_dir=data_dir / cell.data if is_text else data_dir,
        max_length=LENGTHS.get(cell.data, 64), batch_size=8 if is_text else 32,
    )  # fmt: skip
    return open_task(options, folder)


def measured(cell: Cell, folder: str, data_dir: Path) -> dict[str, Any]:
    """One cell, on a fresh model."""
    data, is_text = opened(cell, folder, data_dir), cell.data in TEXTS
    model = load_model(folder, "cpu")
    match_padding_(model, data.processor)
    count = CALIBRATION_TEXTS if is_text else CALIBRATION
    batches = data.batches(data.examples("dev" if is_text else "train", count, cell.seed))
    if cell.ingredient == "without labels":
        batches = [{name: value for name, value in batch.items() if name != "labels"} for batch in batches]
    rows = data.examples("test" if is_text else "dev")
    test = data.batches(rows.subset(list(range(min(len(rows), TEST_TEXTS)))) if is_text else rows)
    began = time.process_time()
    parts = "heads" if cell.budget == "prune" else "both"
    shrinker = Shrinker.of(model, batches, parts=parts, seed=cell.seed, **INGREDIENTS[cell.ingredient])
    with torch.inference_mode(False), evaluation(model):
        whole = WholeAnswers.of(replace(shrinker.context, loss=ExampleLoss("mean")), test)
    mask = shrinker.mask(cell.budget, cell.amount)
    with shrinker.as_shrunk(mask):
        seconds = time.process_time() - began
        small = whole.closeness_now()
    return {**asdict(cell), "whole": asdict(whole.closeness), "small": asdict(small), "seconds": seconds}


def known(path: Path) -> list[dict[str, Any]]:
    return list(loads(path.read_text(encoding="utf-8"))) if path.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--model", action="append", required=True, metavar="MODEL/DATA=FOLDER")
    parser.add_argument("--only", action="append", default=[], help="part of a cell's name; repeatable")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--results", type=Path, default=RESULTS)
    asked = parser.parse_args()
    places = dict(one.split("=", 1) for one in asked.model)
    for cell in cells(places, range(1, asked.seeds + 1)):
        done = {Cell(**{name: one[name] for name in Cell.__dataclass_fields__}) for one in known(asked.results)}
        if cell in done or (asked.only and not any(part in cell.name for part in asked.only)):
            continue
        found = measured(cell, places[f"{cell.model}/{cell.data}"], asked.data_dir)
        write_text(asked.results, json.dumps([*known(asked.results), found], indent=1) + "\n")
        small = found["small"]
        print(f"{cell.name}: KL {small['kl']:.4f}, agreement {small['agreement']:.1%}, loss {small['loss']}")


if __name__ == "__main__":
    main()
