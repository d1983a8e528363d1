"""Whole numbers instead of floats, before and after pruning."""

from __future__ import annotations

import pytest
import torch

import headprune as hp
from headprune.errors import UnsupportedModelError
from headprune.structure.dummy_inputs import example_inputs
from headprune.structure.run import run
from tests.families.tiny import tiny_model


def test_a_quantised_model_is_refused():
    """Dynamic int8 layers are not linear layers any more."""
    model = tiny_model("bert")
    mask = hp.HeadMask.full(hp.find_heads(model)).without("encoder.0:1")

    class Int8Linear(torch.nn.Module):
        """As quantisation libraries keep them: integers and a scale."""

        def __init__(self, linear):
            super().__init__()
            self.in_features, self.out_features = linear.in_features, linear.out_features
            self.scale = linear.weight.abs().max().item() / 127
            self.weight = torch.nn.Parameter((linear.weight / self.scale).round().to(torch.int8), requires_grad=False)
            self.bias = linear.bias

        def forward(self, x):
            return torch.nn.functional.linear(x, self.weight.to(x.dtype) * self.scale, self.bias)

    attention = model.bert.encoder.layer[0].attention.self
    attention.value = Int8Linear(attention.value)
    before = run(model, example_inputs(model))
    with pytest.raises(UnsupportedModelError, match="quantise"):
        hp.prune_(model, mask)
    assert torch.equal(run(model, example_inputs(model)).logits, before.logits)


@pytest.mark.parametrize("family", ["llama", "bert", "t5"])
@pytest.mark.parametrize("emptied", [False, True])
def test_a_pruned_checkpoint_is_quantised_while_it_is_loaded(family, emptied, tmp_path):
    """The ordinary call with torchao's int8 weights: near the whole numbers, and smaller."""
    from torchao.quantization import Int8WeightOnlyConfig
    from transformers import TorchAoConfig

    model = tiny_model(family)
    heads = hp.find_heads(model)
    mask = hp.HeadMask.full(heads).without(*(f"{site.id}:{head}" for site in heads for head in site.groups[0]))
    hp.prune_(model, mask.without(heads.sites[0].id) if emptied else mask)
    model.save_pretrained(tmp_path)
    batch = example_inputs(model)
    quantised = type(model).from_pretrained(tmp_path, quantization_config=TorchAoConfig(Int8WeightOnlyConfig())).eval()
    with torch.no_grad():
        expected, found = (one(**batch)[0] for one in (model, quantised))
    assert type(quantised.get_submodule(heads.sites[-1].output).weight).__module__.startswith("torchao")
    assert 0 < float((found - expected).abs().max()) < 0.1 * float(expected.abs().max())
    assert [site.kept for site in hp.find_heads(quantised)] == [site.kept for site in hp.find_heads(model)]
