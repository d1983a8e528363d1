"""What no answer depends on any more is frozen, named, and frozen again when it is loaded."""

from __future__ import annotations

import copy

import pytest

import headprune as hp
from headprune.structure.dummy_inputs import example_inputs
from headprune.surgery.prune import parameter_gradients, prune_with_report
from tests.families.tiny import full_mask, tiny_model


def frozen(model):
    return {name for name, parameter in model.named_parameters() if not parameter.requires_grad}


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "qwen3", "t5", "mbart", "vit", "mixtral", "deberta-v2"])
@pytest.mark.parametrize("every", [False, True])
def test_no_parameter_waits_for_a_gradient(family, every):
    """Each that had one has one, or no longer asks; nothing that has one is frozen."""
    model = tiny_model(family)
    batch, mask = example_inputs(model), full_mask(model)
    before = parameter_gradients(model, batch)
    pruned = copy.deepcopy(model)
    emptied = [site.id for site in hp.find_heads(model)][: None if every else 1]
    done = prune_with_report(pruned, mask.without(*emptied))
    after = parameter_gradients(pruned, batch)
    assert [name for name in after if after[name] is None and before[name] is not None] == []
    assert frozen(pruned) == set(done.frozen)
    free = copy.deepcopy(pruned).requires_grad_(True)
    assert all(parameter_gradients(free, batch)[name] is None for name in done.frozen)
    done.undo()
    assert not frozen(pruned)


def test_frozen_parameters_are_told_and_stay_frozen_on_disk(tmp_path):
    """In the history; loaded by the same class and by the base class; a second pruning keeps them."""
    model = tiny_model("llama")
    done = prune_with_report(model, full_mask(model).without("decoder.0"))
    assert done.frozen == ("model.layers.0.input_layernorm.weight",)
    assert model.config.headprune["history"][-1]["frozen"] == done.frozen[0]
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    assert frozen(loaded) == set(done.frozen)
    assert frozen(type(model.model).from_pretrained(tmp_path)) == {"layers.0.input_layernorm.weight"}
    hp.prune_(loaded, full_mask(loaded).without("decoder.1"))
    loaded.save_pretrained(tmp_path / "again")
    again = frozen(type(model).from_pretrained(tmp_path / "again"))
    assert again == {f"model.layers.{layer}.input_layernorm.weight" for layer in (0, 1)}
