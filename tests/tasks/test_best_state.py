"""The best weights come back, also after an interruption; a damaged file is none."""

from __future__ import annotations

import torch

from headprune.tasks.best_state import NAME, BestState


def test_the_best_state_comes_back(tmp_path):
    """Of three, the second; a run that goes on knows it, another does not."""
    model = torch.nn.Linear(1, 1, bias=False)
    best = BestState(tmp_path, lambda model: abs(model.weight.item() - 2), goes_on=False)
    for weight in (0.0, 2.5, 7.0):
        model.weight.data.fill_(weight)
        best.look(model)
    assert best.seen == [2.0, 0.5, 5.0]
    again = BestState(tmp_path, best.measure, goes_on=True)
    again.look(model)
    again.restore_(model)
    assert model.weight.item() == 2.5
    assert BestState(tmp_path, best.measure, goes_on=False).least == float("inf")


def test_a_damaged_file_is_none(tmp_path):
    """It is written anew."""
    (tmp_path / NAME).write_bytes(b"cut off")
    model = torch.nn.Linear(1, 1)
    best = BestState(tmp_path, lambda model: 1.0, goes_on=True)
    assert best.least == float("inf")
    best.look(model)
    best.restore_(model)
