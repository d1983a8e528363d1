"""HeadId, HeadMap, HeadMask and HeadScores are values: algebra, comparison, JSON."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headprune.errors import FileFormatError, HeadpruneError, MaskError, UnknownNameError
from headprune.files import write_text
from headprune.heads import HeadId, HeadMap, HeadMask, HeadScores, canonical_component, heads_to_prune
from headprune.heads.ids import SiteName
from headprune.heads.mask import head_units
from tests.strategies import head_maps, head_scores, masks, site

TWO = HeadMap((site("encoder", 0, 4), site("encoder", 1, 4)), model_type="toy")


def test_a_head_is_written_and_read_as_site_colon_index():
    """`encoder.3:7` is a head, also in a second site of a layer and in a tower."""
    for text in ("encoder.3:7", "vision.encoder.0:11", "decoder.2#2:0"):
        assert str(HeadId.parse(text)) == text
    assert HeadId.parse("encoder.3:7") == HeadId("encoder.3", 7)


@pytest.mark.parametrize("text", ["encoder.3", "encoder.3:", ":7", "encoder.3:-1", "encoder.3:x", ""])
def test_what_is_not_a_head_is_refused(text):
    """A wrong name gets an example of a right one."""
    with pytest.raises(UnknownNameError, match=r"encoder\.3:7"):
        HeadId.parse(text)


def test_the_papers_names_of_components_are_accepted():
    """ES / DS / ED (Budhraja) and E / D / A (Michel) mean encoder, decoder, cross."""
    names = {"ES": "encoder", "E": "encoder", "DS": "decoder", "D": "decoder", "ED": "cross", "A": "cross"}
    assert {name: canonical_component(name) for name in names} == names
    assert canonical_component("cross") == "cross"
    with pytest.raises(UnknownNameError, match="Did you mean 'decoder'"):
        canonical_component("decodr")


def test_sites_come_in_order_of_tower_component_and_layer():
    """Whatever order they were found in."""
    found = (site("cross", 0, 2), site("decoder", 10, 2), site("decoder", 2, 2), site("encoder", 0, 2))
    assert [s.id for s in HeadMap(found)] == ["encoder.0", "decoder.2", "decoder.10", "cross.0"]


def test_a_head_map_counts_heads_and_shows_a_table():
    """`len` is heads, not sites."""
    assert len(TWO) == 8
    assert "encoder.1" in str(TWO)
    assert "8 heads in 2 sites" in str(TWO)
    with pytest.raises(UnknownNameError, match=r"encoder\.0"):
        TWO["encoder.9"]


@given(head_maps(pruned=True))
def test_a_head_map_survives_json(heads):
    """JSON out and in gives an equal value."""
    assert HeadMap.from_json(heads.to_json()) == heads
    assert hash(HeadMap.from_json(heads.to_json())) == hash(heads)


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


@given(st.data())
def test_scores_survive_json(data):
    """With sums, squares and counts, so that they still merge."""
    heads = data.draw(head_maps(pruned=True))
    scores = data.draw(head_scores(heads))
    again = HeadScores.from_json(scores.to_json())
    assert again == scores
    assert (again + scores).counts == dict.fromkeys(scores.counts, 6.0)


@given(st.data())
def test_merged_scores_are_the_mean_over_all_samples(data):
    """Two passes give what one pass over everything gives."""
    heads = data.draw(head_maps())
    a, b = data.draw(head_scores(heads, 2)), data.draw(head_scores(heads, 5))
    merged = (a + b).scores
    for s in heads:
        for h in range(s.num_heads):
            expected = (2 * a.scores[s.id][h] + 5 * b.scores[s.id][h]) / 7
            assert merged[s.id][h] == pytest.approx(expected, abs=1e-9)


def test_the_standard_error_is_that_of_the_mean():
    """s / sqrt(n) with the unbiased s: for 1, 2, 3, 4 it is sqrt(5/3) / 2."""
    scores = HeadScores(
        method="toy", sums={"encoder.0": (10.0,)}, squares={"encoder.0": (30.0,)}, counts={"encoder.0": 4.0}
    )
    assert scores["encoder.0:0"] == 2.5
    assert scores.standard_errors["encoder.0"][0] == pytest.approx(math.sqrt(5 / 3) / 2)


def test_normalised_scores_have_unit_norm_per_site():
    """Michel's view: each site divided by its L2 norm; removed heads stay null."""
    heads = HeadMap((site("encoder", 0, 3, kept=(0, 2)),))
    scores = HeadScores.from_values(heads, {"encoder.0": [3.0, 4.0]}, method="toy")
    assert scores.normalized()["encoder.0"] == pytest.approx((0.6, None, 0.8))
    assert scores.to_dict()["scores"] == {"encoder.0": [3.0, None, 4.0]}


def test_scores_of_different_methods_do_not_merge():
    """Nor those of different models."""
    a = HeadScores.from_values(TWO, {"encoder.0": [1] * 4, "encoder.1": [1] * 4}, method="a")
    b = HeadScores.from_values(TWO, {"encoder.0": [1] * 4, "encoder.1": [1] * 4}, method="b")
    with pytest.raises(MaskError, match="Cannot merge"):
        a + b


BAD_FILES = [
    "",
    "not json",
    "[]",
    "{}",
    '{"kind": "headprune.mask", "schema": 99, "original": {}, "kept": {}}',
    '{"kind": "headprune.mask", "schema": 1, "original": {"encoder.0": 2}, "kept": {"encoder.0": [5]}}',
    '{"kind": "headprune.mask", "schema": 1, "original": {"encoder.0": 2}, "kept": {"encoder.0": ["a"]}}',
    '{"kind": "headprune.mask", "schema": 1, "original": {"encoder.0": 2}, "kept": {}}',
    '{"kind": "headprune.mask", "schema": 1, "original": 3, "kept": {}}',
    "[" * 100_000,
]


@pytest.mark.parametrize("text", BAD_FILES, ids=range(len(BAD_FILES)))
def test_a_bad_file_gets_one_of_our_errors(text):
    """Whatever is in it."""
    for kind in (HeadMask, HeadMap, HeadScores):
        with pytest.raises(HeadpruneError):
            kind.from_json(text)


@given(
    st.recursive(
        st.none() | st.integers() | st.text() | st.floats(allow_nan=False),
        lambda x: (
            st.lists(x)
            | st.dictionaries(
                st.sampled_from(
                    ["sites", "skipped", "kept", "original", "sums", "squares", "counts", "options", "encoder.0"]
                ),
                x,
            )
        ),
    )
)
def test_no_json_at_all_breaks_the_readers(content):
    """Random content under the right kind: a value or one of our errors."""
    for name, kind in (("mask", HeadMask), ("heads", HeadMap), ("scores", HeadScores)):
        body = content if isinstance(content, dict) else {"sites": content, "kept": content, "sums": content}
        text = json.dumps({"kind": f"headprune.{name}", "schema": 1, **body})
        try:
            value = kind.from_json(text)
        except HeadpruneError:
            continue
        assert kind.from_json(value.to_json()) == value


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    """A failing write leaves the old file and no litter."""
    target = tmp_path / "mask.json"
    write_text(target, "old")
    with pytest.raises(UnicodeEncodeError):
        write_text(target, "\ud800")
    assert target.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["mask.json"]


def test_files_of_scores_must_agree_with_themselves():
    """Sums without squares are refused."""
    with pytest.raises(FileFormatError, match="same sites"):
        HeadScores.from_dict({"sums": {"encoder.0": [1.0]}, "squares": {}, "counts": {"encoder.0": 1}})


@pytest.mark.parametrize(
    ("site", "name"),
    [
        ("encoder.3", (None, "encoder", 3)),
        ("vision.encoder.12", ("vision", "encoder", 12)),
        ("encoder.0#2", (None, "encoder", 0)),
    ],
)
def test_the_id_of_a_site_is_read(site, name):
    """Tower, component and layer."""
    found = SiteName.parse(site)
    assert (found.tower, found.component, found.layer) == name


@pytest.mark.parametrize("site", ["", "encoder", "encoder.x", ".3", "3"])
def test_what_is_no_site_is_told(site):
    """As for heads."""
    with pytest.raises(HeadpruneError, match="is not the name of a site"):
        SiteName.parse(site)


def test_truth_values_are_no_indices():
    """[False, True] is not "the heads 0 and 1", whatever library it comes from."""
    for flags in ([False, True], torch.tensor([False, True]), np.array([False, True])):
        with pytest.raises(MaskError, match="expected a list of head indices"):
            HeadMask.from_dict(TWO, {"encoder.0": flags})
    assert HeadMask.from_dict(TWO, {"encoder.0": torch.tensor([1, 0])}).kept("encoder.0") == (0, 1)
    with pytest.raises(UnknownNameError, match="numbered 0 to 3"):
        HeadMask.full(TWO).without(HeadId("encoder.0", -1))
