"""One layer of each kind says what all layers say."""

from __future__ import annotations

import pytest
import torch

import headprune as hp
from headprune.structure import find
from headprune.structure.dummy_inputs import example_inputs
from headprune.structure.equal_layers import EqualLayers
from headprune.structure.find import forget
from tests.families.tiny import FAMILIES, tiny_model

QUICK = ("bert", "gpt2", "gpt_neox", "opt", "falcon", "phi3", "llama", "mistral", "mixtral", "qwen2", "qwen3", "vit")


def seen(model):
    """All that pruning uses of a structure."""
    found = find.examined(model, neurons=True)
    blocks = {
        name: (
            block.path, block.attention, block.output, block.heads, block.groups, block.is_causal,
            {path: owners.tolist() for path, owners in block.channels.items()},
            {path: (dim, owners.tolist()) for path, (dim, owners) in block.parameters.items()},
            {path: {r: [c.tolist() for c in cs] for r, cs in roles.items()} for path, roles in block.roles.items()},
            block.call.path,
        )
        for name, block in found.blocks.items()
    }  # fmt: skip
    parts = {name: (part.path, part.output, part.sources, part.size) for name, part in found.feed_forward.items()}
    return found.heads, found.heads.skipped, blocks, parts


@pytest.mark.parametrize("family", FAMILIES)
def test_little_says_what_the_whole_says(family, monkeypatch):
    """Sites, channels of heads, roles and neurons."""
    model = tiny_model(family)
    quick = seen(model)
    monkeypatch.setattr(find, "_look_at_firsts", lambda *_: None)
    assert quick == seen(model)


@pytest.mark.parametrize("family", QUICK)
def test_equal_layers_are_run_once(family):
    """The others are not even called."""
    model = tiny_model(family)
    equal = EqualLayers.of(model, example_inputs(model))
    assert equal is not None
    calls = []
    for path in equal.paths:
        model.get_submodule(path).register_forward_hook(lambda *_, path=path: calls.append(path))
    with equal.firsts_alone(model):
        model(**example_inputs(model))
    assert len(equal.firsts) < len(equal.paths)


def test_layers_of_other_shapes_or_counts_are_of_other_kinds():
    """A layer that was pruned, or counts otherwise, stands for itself."""
    model = tiny_model("llama", num_hidden_layers=6)
    assert EqualLayers.of(model, example_inputs(model)).firsts == ["model.layers.0"]
    model.model.layers[3].self_attn.scaling *= 2
    model.model.layers[4].mlp.down_proj.bias = torch.nn.Parameter(torch.zeros(model.config.hidden_size))
    equal = EqualLayers.of(model, example_inputs(model))
    assert equal.firsts == ["model.layers.0", "model.layers.3", "model.layers.4"]
    forget(model)
    assert len(hp.find_heads(model)) == 6 * model.config.num_attention_heads


def test_layers_that_are_called_otherwise_are_of_other_kinds():
    """Windows in every second layer: the mask is another, although the weights have the same shapes."""
    model = tiny_model("gemma3_text")
    equal = EqualLayers.of(model, example_inputs(model))
    assert len(equal.firsts) > 1
