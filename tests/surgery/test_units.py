"""Grouped-query attention: whole groups, queries of every group, expanded."""

from __future__ import annotations

import copy

import pytest
from transformers import AutoModelForCausalLM

import headprune as hp
from headprune.errors import MaskError, UnsupportedModelError
from headprune.structure.run import difference
from tests.families.tiny import answer_of, tiny_config, tiny_model
from tests.surgery.toy import check_equal, kept, state


def test_whole_groups_go(llama):
    """Fewer KV heads, the same number of heads per group."""
    pruned = check_equal(llama, kept(llama, decoder_0=[0, 1, 4, 5]), gqa="group")
    site = hp.find_heads(pruned)["decoder.0"]
    assert (site.num_heads, site.num_kv_heads, site.kept, site.groups) == (4, 2, (0, 1, 4, 5), ((0, 1), (4, 5)))
    assert pruned.model.layers[0].self_attn.k_proj.weight.shape == (16, 48)


def test_the_same_number_from_each_group(llama):
    """The same KV heads, smaller groups; which head of a group goes may differ."""
    pruned = check_equal(llama, kept(llama, decoder_0=[0, 3, 4]), gqa="query")
    site = hp.find_heads(pruned)["decoder.0"]
    assert (site.num_heads, site.num_kv_heads, site.groups) == (3, 3, ((0,), (3,), (4,)))
    assert pruned.model.layers[0].self_attn.k_proj.weight.shape == (24, 48)


def test_groups_and_then_queries_in_one_mask(llama):
    """Whole groups and the same number of the rest is exact too, and is done unless one way was asked for."""
    mask = kept(llama, decoder_0=[1, 5])
    check_equal(llama, mask)
    for gqa in ("group", "query"):
        with pytest.raises(MaskError, match="grouped-query"):
            hp.prune_(copy.deepcopy(llama), mask, gqa=gqa)


@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt_oss", "phi3"])
def test_expanding_allows_any_heads(family):
    """Every kept head gets its own keys and values; the cache grows, the answers stay."""
    model = tiny_model(family, num_attention_heads=6, num_key_value_heads=3, hidden_size=48)
    mask = kept(model, decoder_0=[0, 1, 2], decoder_1=[5])
    pruned = check_equal(model, mask, gqa="expand")
    site = hp.find_heads(pruned)["decoder.0"]
    assert (site.num_heads, site.num_kv_heads, site.groups) == (3, 3, ((0,), (1,), (2,)))
    second = hp.HeadMask.full(hp.find_heads(pruned)).without("decoder.0:1")
    with hp.masked(model, second):
        expected = answer_of(model)
    assert difference(answer_of(hp.prune_(pruned, second)), expected).is_small


def test_an_expanded_model_reloads(llama, tmp_path):
    """Copied rows are part of the record."""
    pruned = hp.prune_(copy.deepcopy(llama), kept(llama, decoder_0=[0, 1, 2]), gqa="expand")
    pruned.save_pretrained(tmp_path)
    loaded = type(llama).from_pretrained(tmp_path).eval()
    assert difference(answer_of(loaded), answer_of(pruned)).largest == 0.0


def test_a_mask_that_does_not_fit_the_groups_is_refused_with_the_nearest_that_fit(llama):
    """Never changed silently."""
    model = copy.deepcopy(llama)
    before = state(model)
    with pytest.raises(MaskError) as error:
        hp.prune_(model, kept(model, decoder_1=[0, 1, 2]))
    text = str(error.value)
    assert "decoder.1 uses grouped-query attention (6 heads, 3 groups)" in text
    assert "keeps 2, 1 and 0 heads" in text
    assert "whole groups [0, 1, 2, 3]" in text
    assert "[0, 2, 4]" in text
    assert 'gqa="expand"' in text
    assert state(model) == before


def test_multi_query_attention_loses_any_heads():
    """One group: every mask takes the same number from each."""
    model = tiny_model("falcon", multi_query=True)
    pruned = check_equal(model, kept(model, decoder_0=[1, 3]))
    assert hp.find_heads(pruned)["decoder.0"].num_kv_heads == 1


@pytest.mark.parametrize("variant", [{"new_decoder_architecture": True, "num_kv_heads": 2}, {"alibi": True}])
def test_falcons_other_layouts(variant):
    """Interleaved groups, and ALiBi inside the attention mask."""
    model = tiny_model("falcon", **variant)
    check_equal(model, kept(model, decoder_0=[2, 3], decoder_1=[]))


@pytest.mark.parametrize("gqa", ["groups", "", 3])
def test_an_unknown_way_of_shrinking_is_refused(llama, gqa):
    """With the ways there are."""
    with pytest.raises(MaskError, match="'group', 'query', 'expand'"):
        hp.prune_(llama, hp.HeadMask.full(hp.find_heads(llama)), gqa=gqa)


def test_expanding_one_group_in_a_fused_projection():
    """Its keys and values lie side by side, and all heads own both; Falcon's code knows but one group for all."""
    for family, options in (("phi3", {"num_key_value_heads": 1}), ("falcon", {"multi_query": True})):
        model = AutoModelForCausalLM.from_config(tiny_config(family, **options)).eval()
        mask = hp.HeadMask.full(hp.find_heads(model)).without("decoder.0:1", "decoder.1:0")
        if family == "phi3":
            check_equal(model, mask, gqa="expand")
        else:
            with pytest.raises(UnsupportedModelError, match="cannot expand a projection"):
                hp.prune_(model, mask, gqa="expand")
