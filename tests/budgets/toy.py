"""Scores by chance."""

from __future__ import annotations

import torch

from headprune.heads import HeadScores


def random_scores(heads, seed=0):
    generator = torch.Generator().manual_seed(seed)
    rows = {s.id: tuple(torch.rand(s.original_num_heads, generator=generator).tolist()) for s in heads}
    ones = dict.fromkeys(rows, 1.0)
    return HeadScores(method="random", sums=rows, squares=rows, counts=ones, comparable=True)
