"""Figures by arithmetic."""

from __future__ import annotations

import pytest
import torch

from headprune.lab.experiments.library import find_preset
from headprune.lab.experiments.work import works


def test_every_model_of_a_figure_is_built():
    """Five widths of Transformer-XL, each at its own size."""
    from headprune.lab.experiments.placeholders import filled
    from headprune.lab.experiments.size_check import _MODELS

    rival = next(step for step in find_preset("shim-figure-3").scale("paper").steps if step.name == "rival")
    with torch.device("meta"):
        made = [
            _MODELS["train-lm"](rival, {name: filled(value, row) for name, value in rival.options.items()})
            for row in rival.combinations()
        ]
    assert [model.config.hidden_size for model in made] == [512, 480, 448, 416, 384]
    assert [model.config.intermediate_size for model in made] == [2048, 1920, 1792, 1664, 1536]


def test_a_heads_share_is_counted(tmp_path):
    """By cutting one head from each block of a real model: a twelfth of BERT's matrices, less where groups share."""
    from headprune.lab.experiments.work import Context, Needed
    from tests.families.tiny import tiny_model

    for family, share in (("bert", 0.25), ("all_attention", 0.25)):
        tiny_model(family).save_pretrained(tmp_path / family / "out")
        needs = {"model": Needed(tmp_path / family, {})}
        context = Context({"options": {"model": "{model}"}}, 0, tmp_path / "own", needs)
        found = works["head-share"].run(context)
        assert [row["share"] for row in found.values()] == pytest.approx([share] * 2)
