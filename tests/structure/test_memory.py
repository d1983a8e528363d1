"""A model is examined once for a job, and again when it has changed."""

from __future__ import annotations

import copy
import gc
import weakref

import pytest
import torch
from torch import nn

import headprune as hp
from headprune.structure import find
from headprune.structure.dummy_inputs import example_inputs
from headprune.surgery.prune import prune_with_report, temporarily_pruned
from tests.families.tiny import tiny_model


@pytest.fixture
def examinations(monkeypatch):
    """Every model that is examined, in order."""
    seen = []
    original = find.traced_run

    def counted(model, inputs, **how):
        seen.append(model)
        return original(model, inputs, **how)

    monkeypatch.setattr(find, "traced_run", counted)
    return seen


def test_finding_planning_scoring_trying_and_pruning_examine_once(examinations):
    """Whatever is asked of the model as it is."""
    model = tiny_model("bert")
    heads = hp.find_heads(model)
    mask = hp.HeadMask.full(heads).without("encoder.0:1", "encoder.1")
    hp.score(model, [], method="magnitude")
    hp.plan(model, mask)
    for _ in range(3):
        with temporarily_pruned(model, mask):
            pass
    hp.prune_(model, mask)
    assert len(examinations) == 1


def test_a_budget_examines_once(examinations):
    """Though it takes heads away for a moment, again and again."""
    model = tiny_model("bert")
    scores = hp.score(model, [], method="magnitude")
    hp.select(scores, hp.find_heads(model), model=model, macs=0.95)
    assert len(examinations) == 1


def test_heads_and_neurons_are_found_in_one_pass(examinations):
    """And heads alone are known then, too."""
    model = tiny_model("bert")
    every = hp.find_heads(model, neurons=True)
    hp.prune_(model, hp.HeadMask.full(every).without("neurons.0:3", "encoder.0:1"))
    assert len(examinations) == 1
    other = tiny_model("bert")
    hp.find_heads(other, neurons=True)
    assert hp.find_heads(other) == hp.find_heads(tiny_model("bert"))
    assert [model is other for model in examinations] == [False, True, False]


def test_the_same_example_is_looked_at_once_and_another_again(examinations):
    """An example that was given stands for what the model will see."""
    model = tiny_model("bert")
    example = example_inputs(model)
    mask = hp.HeadMask.full(hp.find_heads(model, example)).without("encoder.0:1")
    hp.plan(model, mask, example=example)
    assert len(examinations) == 1
    hp.plan(model, mask, example={name: value.clone() for name, value in example.items()})
    assert len(examinations) == 2


CHANGES = {
    "another module": lambda model: setattr(model.classifier, "dense", nn.Linear(2, 2)),
    "another shape": lambda model: setattr(model.classifier, "bias", None),
    "another type": lambda model: model.double(),
    "another attention": lambda model: model.set_attn_implementation("eager"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_the_model_is_noticed(examinations, change):
    """What was known of it before is forgotten."""
    model = tiny_model("bert")
    hp.find_heads(model)
    CHANGES[change](model)
    hp.find_heads(model)
    assert len(examinations) == 2


def test_a_structure_that_does_not_fit_the_weights_any_more_is_found_anew(examinations):
    """Heads were found while a projection was zero, so that its channels were nobody's."""
    model = tiny_model("bert")
    query = model.bert.encoder.layer[0].attention.self.query
    weight = query.weight.detach().clone()
    key = model.bert.encoder.layer[0].attention.self.key
    with torch.no_grad():
        query.weight.zero_()
        query.bias.zero_()
        key.weight.zero_()
        key.bias.zero_()
    heads = hp.find_heads(model)
    with torch.no_grad():
        query.weight.copy_(weight)
        key.weight.copy_(weight)
    hp.prune_(model, hp.HeadMask.full(heads).without("encoder.0:1"))
    assert len(examinations) == 2
    assert len(hp.find_heads(model)) == len(heads) - 1


def test_a_copy_may_be_pruned_by_the_structure_of_the_original(examinations):
    """Blocks are named by their paths."""
    model = tiny_model("bert")
    structure = find.model_structure(model)
    mask = hp.HeadMask.full(structure.heads).without("encoder.0:1")
    small = copy.deepcopy(model)
    prune_with_report(small, mask, structure=structure)
    assert len(hp.find_heads(small)) == len(structure.heads) - 1
    assert examinations == [model]


@pytest.mark.parametrize("family", ["bert", "t5", "llama", "bloom"])
def test_no_history_is_kept(family):
    """What blocks received is kept without autograd's graph, and little of it."""
    model = tiny_model(family)
    structure = find.model_structure(model)
    assert structure.is_light()
    assert find.known_structure(model, None, neurons=False) is structure


def test_a_large_example_is_not_kept(monkeypatch):
    """Heads are remembered, what the blocks received is not."""
    monkeypatch.setattr(find, "MOST_BYTES", 100)
    model = tiny_model("bert")
    heads = hp.find_heads(model)
    assert find.known_structure(model, None, neurons=False) is None
    assert find.known_heads(model, neurons=False) is heads


def test_what_is_known_goes_with_the_model():
    """Nothing keeps a model alive that its owner has given up."""
    model = tiny_model("bert")
    hp.find_heads(model)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
