"""`magnitude`."""

from __future__ import annotations

import pytest

import headprune as hp
from headprune.errors import UnsupportedModelError
from tests.families.tiny import tiny_model


@pytest.mark.parametrize(
    ("family", "value_rows"),
    [
        ("bert", lambda m, h: m.bert.encoder.layer[0].attention.self.value.weight[8 * h : 8 * h + 8]),
        ("gpt2", lambda m, h: m.transformer.h[0].attn.c_attn.weight.T[64 + 8 * h : 64 + 8 * h + 8]),
        ("gpt_neox", lambda m, h: m.gpt_neox.layers[0].attention.query_key_value.weight[24 * h + 16 : 24 * h + 24]),
        ("llama", lambda m, h: m.model.layers[0].self_attn.v_proj.weight[8 * (h // 2) : 8 * (h // 2) + 8]),
        ("phi3", lambda m, h: m.model.layers[0].self_attn.qkv_proj.weight[48 + 8 * (h // 2) : 56 + 8 * (h // 2)]),
        ("deepseek_v3", lambda m, h: m.model.layers[0].self_attn.kv_b_proj.weight[14 * h + 8 : 14 * h + 14]),
        ("t5", lambda m, h: m.encoder.block[0].layer[0].SelfAttention.v.weight[8 * h : 8 * h + 8]),
    ],
)
def test_magnitude_is_the_norm_of_the_value_output_product(family, value_rows):
    """Values are found in separate, fused, interleaved, shared and latent projections without a table of names."""
    model = tiny_model(family)
    site = hp.find_heads(model).sites[0]
    output = model.get_submodule(site.output).weight
    output = output.T if family == "gpt2" else output
    found = hp.score(model, method="magnitude").scores[site.id]
    for h in range(site.num_heads):
        part = slice(h * site.head_dim, (h + 1) * site.head_dim)
        assert found[h] == pytest.approx((output[:, part] @ value_rows(model, h)).norm().item(), rel=1e-5)


def test_magnitude_is_refused_where_values_have_no_weight_of_their_own():
    """nn.MultiheadAttention packs them into one parameter that is no projection."""
    with pytest.raises(UnsupportedModelError, match="output-norm"):
        hp.score(tiny_model("siglip"), method="magnitude")


@pytest.mark.parametrize(
    ("family", "read"),
    [
        ("bert", lambda m: [m.bert.encoder.layer[0].intermediate.dense.weight]),
        ("llama", lambda m: [m.model.layers[0].mlp.gate_proj.weight, m.model.layers[0].mlp.up_proj.weight]),
        ("phi3", lambda m: m.model.layers[0].mlp.gate_up_proj.weight.chunk(2)),
    ],
)
def test_the_magnitude_of_a_neuron_is_of_what_it_reads_and_writes(family, read):
    """With a gate, both rows; fused or not."""
    model = tiny_model(family)
    site = hp.find_heads(model, neurons=True).neurons.sites[0]
    written = model.get_submodule(site.output).weight.norm(dim=0)
    rows = sum(weight.square().sum(1) for weight in read(model)).sqrt()
    found = hp.score(model, method="magnitude", heads=hp.find_heads(model, neurons=True)).scores[site.id]
    assert list(found) == pytest.approx((written * rows).tolist(), rel=1e-5)
