"""`hp.select`: the same heads as on the command line."""

from __future__ import annotations

import json

import pytest
import torch
from typer.testing import CliRunner

import headprune as hp
from headprune.cli.app import app
from headprune.scoring import scorers
from headprune.structure.example import example_inputs
from tests.families.tiny import tiny_model

METHODS = sorted(scorers)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A tiny BERT whose second layer writes much more than its first, its folder, and a batch."""
    folder, model = tmp_path_factory.mktemp("bert"), tiny_model("bert", num_hidden_layers=3)
    with torch.no_grad():
        for site in list(hp.find_heads(model))[1:]:
            model.get_submodule(site.output).weight.mul_(10.0)
    model.save_pretrained(folder)
    return model, folder, {**example_inputs(model), "labels": torch.tensor([0, 1])}


def chosen(folder, scores, *words):
    """The heads that `headprune prune` keeps by a file of scores."""
    file = folder / "scores.json"
    file.write_text(scores.to_json())
    told = CliRunner().invoke(
        app, ["prune", str(folder), "--scores", str(file), *words, "--dry-run", "--json"], catch_exceptions=False
    )
    return json.loads(told.stdout)["kept"]


@pytest.mark.parametrize("method", METHODS)
def test_the_same_scores_choose_the_same_heads_in_python_and_on_the_command_line(method, saved):
    """Whether the scores compare across sites or not."""
    model, folder, batch = saved
    scores = hp.score(model, [batch], method=method)
    heads = hp.find_heads(model)
    assert hp.select(scores, prune=0.5).to_dict() == chosen(folder, scores, "--prune", "50%")
    assert hp.select(scores, heads, keep=5).to_dict() == chosen(folder, scores, "--keep", "5")
    assert hp.pattern(heads, "50%", scores=scores) == hp.select(scores, heads, keep=0.5)
