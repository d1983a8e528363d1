"""Rows whose moments are known."""

from __future__ import annotations

import pytest
import torch

from headprune.scoring.moments import Moments


@pytest.fixture
def moments():
    torch.manual_seed(0)
    rows = torch.randn(200, 12, dtype=torch.float64) @ torch.randn(12, 12, dtype=torch.float64) + 0.3
    found = Moments()
    found.add(rows)
    return rows, found
