"""Masks are sets of heads: algebra, comparison, JSON."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import headprune as hp
from headprune.errors import MaskError, UnknownNameError
from headprune.heads import HeadId, HeadMap, HeadMask, heads_to_prune
from headprune.heads.mask import head_units
from tests.families.tiny import tiny_model
from tests.strategies import TWO, head_maps, masks, site


@given(st.data())
def test_a_mask_survives_json(data):
    """JSON out and in gives an equal value, and the file is checked against a model."""
    heads = data.draw(head_maps())
    mask = data.draw(masks(heads))
    assert HeadMask.from_json(mask.to_json(), heads) == mask
    assert set(mask.to_dict()) == {s.id for s in heads}


@given(st.data())
def test_masks_are_sets_of_heads(data):
    """The operators are those of sets."""
    heads = data.draw(head_maps())
    a, b = data.draw(masks(heads)), data.draw(masks(heads))
    sets = set(a), set(b)
    assert set(a & b) == sets[0] & sets[1]
    assert set(a | b) == sets[0] | sets[1]
    assert set(a - b) == sets[0] - sets[1]
    assert (a <= b) == (sets[0] <= sets[1])
    assert (a == b) == (sets[0] == sets[1])
    assert len(a) == len(sets[0])
    assert HeadMask.empty(heads) <= a <= HeadMask.full(heads)


@given(head_maps(), st.floats(0, 1), st.floats(0, 1), st.integers(0, 5))
def test_pruning_more_at_random_never_brings_a_head_back(heads, share, more, seed):
    """What a mild cut removes, a harsher one with the same seed removes too."""
    mild, harsh = sorted((share, more))
    assert HeadMask.random(heads, prune=harsh, seed=seed) <= HeadMask.random(heads, prune=mild, seed=seed)


@given(head_maps(), st.floats(0, 1))
def test_a_random_mask_has_the_stated_number_of_heads(heads, share):
    """floor(share x N + 1e-9) heads go."""
    assert len(heads) - len(HeadMask.random(heads, prune=share)) == math.floor(share * len(heads) + 1e-9)


def test_a_random_mask_is_the_same_everywhere():
    """The same seed gives the same heads; another seed gives others."""
    assert HeadMask.random(TWO, keep=0.5, seed=0).to_dict() == {"encoder.0": [0, 3], "encoder.1": [2, 3]}
    assert HeadMask.random(TWO, keep=0.5, seed=1) != HeadMask.random(TWO, keep=0.5, seed=0)


@pytest.mark.parametrize(
    ("amount", "gone"),
    [
        ({"prune": 0.5}, 5),
        ({"keep": 0.5}, 5),
        ({"prune": 1}, 1),
        ({"prune": 1.0}, 10),
        ({"keep": 1}, 9),
        ({"prune": 0.55}, 5),
        ({"prune": 0.3}, 3),
        ({"keep": 0.7}, 3),
        ({"prune": 0.55, "rounding": "ceil"}, 6),
        ({"prune": 0.3, "rounding": "ceil"}, 3),
    ],
)
def test_a_float_is_a_share_and_an_int_a_count(amount, gone):
    """`1` is one head, `1.0` is all; shares round down unless asked otherwise."""
    assert heads_to_prune(10, **amount) == gone


@pytest.mark.parametrize(
    "amount", [{"prune": 1.5}, {"prune": 11}, {"prune": -1}, {}, {"prune": 1, "keep": 1}, {"keep": True}]
)
def test_impossible_amounts_are_refused(amount):
    """Neither more than all, nor less than none, nor two answers at once."""
    with pytest.raises(MaskError):
        heads_to_prune(10, **amount)


def test_unnamed_sites_keep_all_and_an_empty_list_empties():
    """`from_dict` follows the rule of mask files."""
    mask = HeadMask.from_dict(TWO, {"encoder.1": []})
    assert mask.to_dict() == {"encoder.0": [0, 1, 2, 3], "encoder.1": []}


def test_without_takes_heads_and_whole_sites():
    """And leaves the mask it came from as it was."""
    full = HeadMask.full(TWO)
    mask = full.without("encoder.0:3", "encoder.1")
    assert mask.to_dict() == {"encoder.0": [0, 1, 2], "encoder.1": []}
    assert len(full) == 8
    assert "encoder.0:0" in mask
    assert "encoder.0:3" not in mask


@pytest.mark.parametrize("name", ["encoder.0:4", "encoder.7:0", "encoder.7", "nonsense"])
def test_a_head_that_does_not_exist_is_refused_by_name(name):
    """Also where only the index is wrong."""
    with pytest.raises(UnknownNameError, match=name.split(":0")[0].replace(".", r"\.")):
        HeadMask.full(TWO).without(name)


def test_a_mask_for_another_model_is_noticed():
    """By its sites and by its original head counts."""
    other = HeadMap((site("encoder", 0, 4), site("encoder", 1, 6)))
    with pytest.raises(MaskError, match=r"another model.*encoder\.1 \(4 and 6\)"):
        HeadMask.from_json(HeadMask.full(TWO).to_json(), other)
    with pytest.raises(MaskError, match="different models"):
        HeadMask.full(TWO) & HeadMask.full(other)


def test_a_mask_that_keeps_a_removed_head_is_refused():
    """The removed head is named; what is left is `full` of the pruned model."""
    pruned = HeadMap((site("encoder", 0, 4, kept=(0, 2)), site("encoder", 1, 4)))
    assert HeadMask.full(pruned).to_dict() == {"encoder.0": [0, 2], "encoder.1": [0, 1, 2, 3]}
    with pytest.raises(MaskError, match=r"encoder\.0:1, which was removed"):
        HeadMask.full(TWO).checked_for(pruned)


def test_units_of_grouped_query_attention():
    """A group is a KV head with its query heads; a query unit is one head of every group."""
    heads = HeadMap((site("decoder", 0, 6, kv_heads=2),))
    indices = [[h.index for h in unit] for unit in head_units(heads, "group")]
    assert indices == [[0, 1, 2], [3, 4, 5]]
    assert [[h.index for h in unit] for unit in head_units(heads, "query")] == [[0, 3], [1, 4], [2, 5]]
    assert len(HeadMask.random(heads, keep=0.5, seed=0, unit="group")) == 3
    with pytest.raises(UnknownNameError, match="unit"):
        HeadMask.random(heads, keep=0.5, unit="gruop")


def test_truth_values_are_no_indices():
    """[False, True] is not "the heads 0 and 1", whatever library it comes from."""
    for flags in ([False, True], torch.tensor([False, True]), np.array([False, True])):
        with pytest.raises(MaskError, match="expected a list of head indices"):
            HeadMask.from_dict(TWO, {"encoder.0": flags})
    assert HeadMask.from_dict(TWO, {"encoder.0": torch.tensor([1, 0])}).kept("encoder.0") == (0, 1)
    with pytest.raises(UnknownNameError, match="numbered 0 to 3"):
        HeadMask.full(TWO).without(HeadId("encoder.0", -1))


def test_without_groups_every_unit_is_a_head():
    """`group` and `query` on plain multi-head attention."""
    heads = hp.find_heads(tiny_model("bert"))
    for unit in ("head", "group", "query"):
        assert len(hp.HeadMask.random(heads, prune=0.25, seed=0, unit=unit)) == 6


@pytest.mark.parametrize("kept", [[1.9], "12", 3, ["a"], [None]])
def test_heads_that_are_not_whole_numbers_are_refused(kept):
    """Never rounded, never read character by character."""
    with pytest.raises(MaskError):
        hp.HeadMask.from_dict(hp.find_heads(tiny_model("bert")), {"encoder.0": kept})
