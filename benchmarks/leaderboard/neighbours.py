"""Sentence encoders that are not fine-tuned: which of the ten nearest sentences stay when a model becomes smaller."""

from __future__ import annotations

import csv
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.leaderboard.by_cost import NEIGHBOURS, SAME, CostSpec
from benchmarks.leaderboard.comparisons import keep
from benchmarks.leaderboard.measure import CALIBRATION
from benchmarks.leaderboard.places import LENGTHS, Folders
from benchmarks.leaderboard.speed import BATCH, LENGTH, times_of
from torch import Tensor

from headprune.cost.measurement import measure
from headprune.recovery.greedy_search import named_repair
from headprune.shrink import Shrinker
from headprune.stats import bootstrap_interval
from headprune.structure.find import find_heads

NEAREST = 10


@dataclass
class EncoderModel:
    """A sentence encoder, and sentences to find the neighbours of."""

    whole: Any
    tokenizer: Any
    texts: list[str]
    calibration: list[str]
    rows: Path  # what was found in earlier cells, to compare with
    shrinkers: dict[tuple[str, str], tuple[Shrinker, float]] = field(default_factory=dict)
    near: Tensor | None = None  # of the whole model

    @classmethod
    def of(cls, spec: CostSpec, folders: Folders, rows: Path) -> EncoderModel:
        from transformers import AutoModel, AutoTokenizer

        folder = folders.model(spec.model, NEIGHBOURS, spec.tuning)
        texts, calibration = (_texts(folders.report / NEIGHBOURS / f"{part}.tsv") for part in ("test", "train"))
        model = AutoModel.from_pretrained(folder).eval()
        return cls(model, AutoTokenizer.from_pretrained(folder), texts, calibration[:CALIBRATION], rows)

    def measured(self, spec: CostSpec) -> dict[str, Any]:
        """One cell: the share of a sentence's neighbours that stay, over all sentences."""
        began = time.process_time()
        if self.near is None:
            self.near = nearest(self._vectors(self.whole))
        one, seconds, recover = self._shrunk(spec)
        stay = staying_shares(self.near, nearest(self._vectors(one.model)))
        keep(self.rows, spec, stay)
        interval = bootstrap_interval(stay, lambda rows: float(rows.mean()), seed=spec.seed)
        whole = measure(self.whole, batch=BATCH, length=LENGTH, repeats=0)
        found = measure(one.model, batch=BATCH, length=LENGTH, repeats=0)
        left = find_heads(one.model, neurons=True)
        return {
            "metric": "neighbours", "full": 1.0, "score": float(stay.mean()), "nll_full": None, "nll": None,
            "ece_full": None, "ece": None, "examples": len(stay), "recover": recover, "seconds": seconds,
            "change": {"difference": interval.estimate - 1, "interval": [interval.low - 1, interval.high - 1]},
            "macs": found.macs.total / whole.macs.total, **times_of(one.model, self.whole),
            "heads": len(left.attention), "neurons": len(left.neurons),
            "calibration": len(self.calibration), "took": time.process_time() - began,
        }  # fmt: skip

    def _shrunk(self, spec: CostSpec) -> tuple[Shrinker, float, str]:
        recover = named_repair("best", None) if spec.recover == SAME else spec.recover
        key = (spec.method, spec.recover)
        if key not in self.shrinkers:
            self.shrinkers.clear()
            began = time.process_time()
            shrinker = Shrinker.of(
                self.whole, self._batches(self.calibration), method=spec.method, recover=recover or "none",
                batch=BATCH, length=LENGTH, seed=spec.seed,
            )  # fmt: skip
            self.shrinkers[key] = shrinker, time.process_time() - began
        shrinker, scoring = self.shrinkers[key]
        began = time.process_time()
        one = shrinker.copied()
        one.shrink_(spec.budget, spec.amount, repeats=0)
        return one, scoring + time.process_time() - began, recover or "none"

    def _batches(self, texts: Sequence[str], size: int = 32) -> list[dict[str, Tensor]]:
        length = LENGTHS.get(NEIGHBOURS, LENGTH)
        return [
            dict(
                self.tokenizer(
                    texts[i : i + size], padding=True, truncation=True, max_length=length, return_tensors="pt"
                )
            )
            for i in range(0, len(texts), size)
        ]

    def _vectors(self, model: Any) -> Tensor:
        found = []
        with torch.inference_mode():
            for batch in self._batches(self.texts):
                states = model(**batch).last_hidden_state
                real = batch["attention_mask"].unsqueeze(-1).to(states)
                found.append((states * real).sum(1) / real.sum(1))  # mean over tokens, as these models are used
        return torch.nn.functional.normalize(torch.cat(found), dim=1)


def nearest(vectors: Tensor) -> Tensor:
    """The ten nearest other vectors of each, (vectors, 10)."""
    likeness = vectors @ vectors.T
    likeness.fill_diagonal_(-torch.inf)
    found: Tensor = likeness.topk(NEAREST, dim=1).indices
    return found


def staying_shares(before: Tensor, after: Tensor) -> np.ndarray[Any, Any]:
    """Of each row's neighbours, how many are there afterwards, too."""
    same = (before[:, :, None] == after[:, None, :]).any(-1)
    shares: np.ndarray[Any, Any] = same.double().mean(1).numpy()
    return shares


def _texts(path: Path) -> list[str]:
    with path.open(encoding="utf-8") as file:
        return [row["text"] for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]
