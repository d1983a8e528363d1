"""Batches with labels, and an attention small enough to be solved by hand."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from headprune.structure.dummy_inputs import example_inputs
from tests.families.tiny import DECODERS, SEQ2SEQ


def labelled(model, family, seed=0):
    """A batch with labels, padded where there are tokens."""
    batch = example_inputs(model, seed=seed)
    if "attention_mask" in batch:
        batch["attention_mask"][1, 5:] = 0
    if family in SEQ2SEQ:
        batch["labels"] = batch.pop("decoder_input_ids")
        batch["labels"][1, 3:] = -100
    elif family in DECODERS:
        batch["labels"] = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    else:
        batch["labels"] = torch.tensor([0, 1])
    return batch


def rows(scores):
    return torch.tensor([x for row in scores.scores.values() for x in row], dtype=torch.float64)


def singles(batch):
    return [{k: v[i : i + 1] for k, v in batch.items()} for i in range(2)]


class ToyAttention(nn.Module):
    """One site of two heads of width one whose output is read at each position by hand."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(2, 2, bias=False) for _ in range(4))
        for linear in (self.q, self.k):
            nn.init.normal_(linear.weight, std=0.3)
        nn.init.eye_(self.v.weight)
        nn.init.eye_(self.o.weight)

    def forward(self, x, labels=None):
        split = [f(x).unflatten(-1, (2, 1)).transpose(1, 2) for f in (self.q, self.k, self.v)]
        context = F.scaled_dot_product_attention(*split).transpose(1, 2).flatten(2)
        return self.o(context)
