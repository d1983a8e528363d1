"""A differentiable top-k: numbers between 0 and 1 that sum to k."""

from __future__ import annotations

import torch
from torch import Tensor


def soft_top_k(scores: Tensor, k: int, temperature: float) -> Tensor:
    """sigmoid((score - t) / temperature) with the threshold t for which they sum to k.

    The threshold is found by bisection; one Newton step from there carries its gradient, which is then exact.
    """
    if k <= 0:
        return scores * 0.0
    if k >= len(scores):
        return scores * 0.0 + 1.0
    with torch.no_grad():
        reach = 40 * temperature
        low, high = scores.min() - reach, scores.max() + reach
        for _ in range(60):
            middle = (low + high) / 2
            too_many = torch.sigmoid((scores - middle) / temperature).sum() > k
            low, high = torch.where(too_many, middle, low), torch.where(too_many, high, middle)
        threshold = (low + high) / 2
        at = torch.sigmoid((scores - threshold) / temperature)
        slope = (at * (1 - at)).sum() / temperature
    moved = torch.sigmoid((scores - threshold) / temperature).sum() - k
    threshold = threshold + moved / slope.clamp_min(1e-12)
    return torch.sigmoid((scores - threshold) / temperature)
