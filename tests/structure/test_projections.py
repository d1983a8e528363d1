"""Which rows belong to which head, and which heads share keys and values."""

from __future__ import annotations

import copy

import pytest
import torch

import headprune as hp
from headprune.structure.dummy_inputs import example_inputs
from headprune.structure.find import model_structure
from tests.families.tiny import tiny_model


@pytest.mark.parametrize(
    ("family", "kv", "groups"),
    [
        ("llama", 2, ((0, 1), (2, 3))),
        ("gpt2", 4, ((0,), (1,), (2,), (3,))),
        ("deepseek_v3", 4, ((0,), (1,), (2,), (3,))),
    ],
)
def test_groups_are_the_heads_that_share_keys_and_values(family, kv, groups):
    """GQA, MHA and latent attention, by gradients."""
    site = hp.find_heads(tiny_model(family)).sites[0]
    assert (site.num_kv_heads, site.groups) == (kv, groups)


def test_multi_query_attention_is_one_group():
    """Falcon's fused projection with a single KV head."""
    site = hp.find_heads(tiny_model("falcon", multi_query=True)).sites[0]
    assert (site.num_heads, site.num_kv_heads, site.groups) == (4, 1, ((0, 1, 2, 3),))


def test_a_site_of_one_head_keeps_its_projections_and_its_direction():
    """Whatever belongs to the only head belongs to all heads: that is no reason to look elsewhere for it."""
    model = tiny_model("gpt2", n_head=1)
    heads = hp.find_heads(model)
    assert [site.id for site in heads] == ["decoder.0", "decoder.1"]
    before = sum(p.numel() for p in model.parameters())
    hp.prune_(model, hp.HeadMask.full(heads).without("decoder.0"))
    assert before - sum(p.numel() for p in model.parameters()) >= 32 * 96 + 32 * 32  # c_attn and c_proj


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "phi3", "t5", "vit", "mixtral", "deepseek_v3"])
def test_half_precision_finds_the_same_structure(family, dtype):
    """Roles, owners and groups: no decision hangs on a rounding."""
    model = tiny_model(family)
    exact = model_structure(model, example_inputs(model))
    half = copy.deepcopy(model).to(dtype)
    rough = model_structure(half, example_inputs(half))
    assert rough.heads == exact.heads
    for site, block in exact.blocks.items():
        found = rough.blocks[site]
        assert {p: sorted(roles) for p, roles in found.roles.items()} == {p: sorted(r) for p, r in block.roles.items()}
        assert all(torch.equal(found.channels[path], owners) for path, owners in block.channels.items())


def test_every_value_of_a_bf16_llama_is_told_from_its_keys():
    """The shape of SmolLM2-135M: 9 heads of 64 in 3 groups. Sums that cancel are smaller than their rounding."""
    sizes = {"hidden_size": 576, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64}
    for seed in range(3):
        model = tiny_model("llama", seed=seed, num_hidden_layers=4, intermediate_size=64, **sizes).to(torch.bfloat16)
        for block in model_structure(model).blocks.values():
            roles = {path.rpartition(".")[2]: set(found) for path, found in block.roles.items()}
            assert roles == {"q_proj": {"query"}, "k_proj": {"key"}, "v_proj": {"value"}}
        hp.score(model, method="magnitude")
