"""How far a classifier's confidence is from its accuracy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

BINS = 15
IGNORED = -100


@dataclass
class Confidences:
    """How sure a model was of each answer, and whether it was right; `keep` is what `evaluate` calls."""

    sure: list[Tensor] = field(default_factory=list)
    right: list[Tensor] = field(default_factory=list)

    def keep(self, outputs: Any, batch: Mapping[str, Any]) -> None:
        logits, labels = outputs.logits.float().cpu(), batch["labels"].cpu()
        asked = labels != IGNORED
        confidence, guess = logits.softmax(-1).max(-1)
        self.sure.append(confidence[asked].double())
        self.right.append((guess == labels)[asked].double())

    def error(self) -> float:
        """The expected calibration error in 15 equal bins of confidence: mean |accuracy - confidence|, by how many
        answers a bin has (Guo et al. 2017)."""
        sure, right = torch.cat(self.sure), torch.cat(self.right)
        places = (sure * BINS).long().clamp_max(BINS - 1)
        gaps = torch.zeros(BINS, dtype=torch.float64).index_add(0, places, right - sure)
        return float(gaps.abs().sum() / len(sure))
