"""Which rows belong to which head, and which heads share keys and values."""

from __future__ import annotations

import pytest

import headprune as hp
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
