"""Families whose structure does not tell everything: each goes through every check of `headprune verify`."""

from __future__ import annotations

import pytest
from tools.families.build_model import build
from tools.families.families import verify_type

import headprune as hp
from headprune.errors import UnsupportedModelError
from headprune.model_checks import one_unit_fewer

EXACT = (
    "switch_transformers",  # T5's line: a position bias made in the first layer for all
    "pop2piano",
    "bloom",  # ALiBi
    "longformer",  # heads after the queries, in a band
    "led",
    "fsmt",  # batch and heads in one dimension
    "pegasus_x",  # reshapes to a fixed width
    "trocr",
    "groupvit",
    "pvt",
    "swinv2",
    "donut-swin",
    "deberta",
    "diffllama",  # two attention maps a head
    "nystromformer",  # a convolution with a group for each head
    "parakeet_ctc",  # grouped queries with relative positions of their own for each head
    "deformable_detr",  # heads after the queries
    "qwen2_vl",  # pictures as patches on a grid, among the text
    "wavlm",  # gates of each head's slice of the input, inside one function of PyTorch's
    "xlnet",  # bare parameters and einsums
    "zamba",  # layers that share one attention
    "mobilevit",  # stages, some without attention
    "t5gemma2",  # self- and cross-attention in one, by the same projections
    "dab-detr",  # projections outside the attention, queries twice as wide as values
    "xlm",  # a cache that the first run fills
)
COUPLED = {
    "olmo2": "q_norm normalises the heads together",
    "codegen": "four blocks",
    "doge": "dt_proj",
    "longt5": "position bias of all layers",
    "prophetnet": "predicting stream",
}


@pytest.mark.parametrize("model_type", EXACT)
def test_every_check_passes(model_type):
    """Masked = pruned = reloaded, emptied, pruned twice, generated, eager, half precision, trained."""
    family = verify_type(model_type)
    assert (family.status, family.reason) == ("pass", "")


@pytest.mark.parametrize("model_type", COUPLED)
def test_coupled_heads_can_be_masked_and_the_refusal_says_why(model_type):
    """Nothing changes in the model that is refused."""
    built = build(model_type)
    heads = hp.find_heads(built.model, built.batch)
    before = {name: value.clone() for name, value in built.model.state_dict().items()}
    with pytest.raises(UnsupportedModelError, match=COUPLED[model_type]):
        hp.prune_(built.model, one_unit_fewer(heads), example=built.batch)
    assert all(value.equal(before[name]) for name, value in built.model.state_dict().items())
    with hp.masked(built.model, one_unit_fewer(heads)):
        built.model(**built.batch)


def test_heads_that_go_in_pairs_are_left_alone_by_name():
    """Half of a pair would be found, masked and told as a head otherwise."""
    family = verify_type("lilt")
    assert (family.status, family.sites) == ("refused", {})
    assert "only in pairs" in family.reason


@pytest.mark.parametrize("model_type", ["mamba", "fnet", "rwkv", "falcon_mamba"])
def test_what_is_no_attention_is_not_taken_for_it(model_type):
    """State-space layers and Fourier transforms have no heads, and the reason names them."""
    family = verify_type(model_type)
    assert family.status == "no-attention"
    assert not family.sites
    assert "mixes positions without a softmax" in family.reason


def test_layers_that_share_weights_share_them_after_pruning():
    """Zamba's layers have one attention: cut alike, it is one tensor still, and saved once; emptied, it loads."""
    built = build("zamba")
    heads = hp.find_heads(built.model, built.batch)
    pruned = hp.prune_(built.model, one_unit_fewer(heads), example=built.batch)
    first, second = (pruned.get_submodule(site.path).q_proj.weight for site in heads)
    assert first is second
