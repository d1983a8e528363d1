"""The pattern grammar, and every configuration of Budhraja et al.'s tables."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headprune as hp
from headprune.errors import HeadpruneError, PatternError
from headprune.heads import HeadMap, HeadMask, HeadScores
from headprune.heads.patterns import pattern
from tests.strategies import head_maps, site


def model(components=("encoder",), layers=6, heads=8):
    return HeadMap(tuple(site(c, layer, heads) for c in components for layer in range(layers)))


TRANSFORMER = model(("encoder", "decoder", "cross"))
BERT = model(layers=12, heads=12)


def emptied(heads, text):
    mask = pattern(heads, text)
    return [s.layer for s in heads if not mask.kept(s.id)]


@pytest.mark.parametrize(
    ("text", "total"), [("888444", 36), ("777322", 28), ("666666", 36), ("444888", 36), ("111111", 6), ("000000", 0)]
)
def test_a_digit_per_layer_is_the_heads_it_keeps(text, total):
    """In one component; each layer exactly its digit."""
    mask = pattern(model(), text)
    assert [len(mask.kept(f"encoder.{i}")) for i in range(6)] == [int(d) for d in text]
    assert len(mask) == total


@pytest.mark.parametrize(
    ("text", "total"),
    [("888444", 108), ("444888", 108), ("777322", 84), ("666222", 72), ("444444", 72), ("222222", 36)],
)
def test_one_string_for_all_components(text, total):
    """A string without a component holds for each of them."""
    assert len(pattern(TRANSFORMER, text)) == total


def test_strings_with_two_digit_counts_have_commas():
    """12,12,… for layers with more than nine heads."""
    mask = pattern(BERT, ",".join(["12"] * 6 + ["3"] * 6))
    assert len(mask) == 6 * 12 + 6 * 3


@pytest.mark.parametrize("kept", [(48, 12, 12), (12, 48, 12), (14, 31, 30), (24, 24, 24), (0, 48, 48)])
def test_a_triple_is_encoder_decoder_cross(kept):
    """Bare triples follow our order."""
    mask = pattern(TRANSFORMER, "/".join(map(str, kept)), seed=3)
    for component, number in zip(("encoder", "decoder", "cross"), kept, strict=True):
        assert sum(len(mask.kept(s.id)) for s in TRANSFORMER if s.component == component) == number


def test_budhrajas_triples_name_their_components():
    """ES=14,ED=31,DS=30: the paper's order puts cross-attention second."""
    mask = pattern(TRANSFORMER, "ES=14,ED=31,DS=30")
    counts = {c: sum(len(mask.kept(s.id)) for s in TRANSFORMER if s.component == c) for c in TRANSFORMER.components}
    assert counts == {"encoder": 14, "cross": 31, "decoder": 30}
    assert len(mask) == 75


@pytest.mark.parametrize(
    ("text", "layers"),
    [
        ("top:1", [11]), ("top:3", [9, 10, 11]), ("top:6", list(range(6, 12))), ("top:8", list(range(4, 12))),
        ("bottom:1", [0]), ("bottom:3", [0, 1, 2]), ("bottom:6", list(range(6))), ("bottom:8", list(range(8))),
        ("top:1+bottom:1", [0, 11]), ("top:2+bottom:2", [0, 1, 10, 11]), ("top:3+bottom:3", [0, 1, 2, 9, 10, 11]),
        ("top:4+bottom:4", [0, 1, 2, 3, 8, 9, 10, 11]),
        ("middle:2", [5, 6]), ("middle:4", [4, 5, 6, 7]), ("middle:6", list(range(3, 9))),
        ("middle:8", list(range(2, 10))),
        ("odd", [0, 2, 4, 6, 8, 10]), ("even", [1, 3, 5, 7, 9, 11]),
    ],
)  # fmt: skip
def test_whole_layers_of_tables_5_and_6(text, layers):
    """Top is nearest the output; the paper's layer 1 is our layer 0."""
    assert emptied(BERT, text) == layers
    assert len(pattern(BERT, text)) == 144 - 12 * len(layers)


def test_one_head_per_site_is_the_87_percent_row():
    """18 of 144 in the paper's translation model."""
    mask = pattern(TRANSFORMER, "one", seed=1)
    assert len(mask) == 18
    assert all(len(mask.kept(s.id)) == 1 for s in TRANSFORMER)
    assert 1 - len(mask) / 144 == 0.875


def test_random_and_stratified_random():
    """Uniform over the model, or the same share in every site; by seed."""
    assert len(pattern(BERT, "random:50%", seed=0)) == 72
    assert pattern(BERT, "random:50%", seed=0) != pattern(BERT, "random:50%", seed=1)
    even = pattern(BERT, "stratified:25%", seed=0)
    assert all(len(even.kept(s.id)) == 3 for s in BERT)
    assert pattern(BERT, "random:72", seed=5) == pattern(BERT, "#72", seed=5)


def test_scores_decide_which_heads_stay():
    """The best, or with worst=True the lowest (the right half of Table 2)."""
    heads = model(layers=2, heads=4)
    scores = HeadScores.from_values(heads, {"encoder.0": [4, 3, 2, 1], "encoder.1": [1, 2, 3, 4]}, method="toy")
    assert pattern(heads, "2,1", scores=scores).to_dict() == {"encoder.0": [0, 1], "encoder.1": [3]}
    assert pattern(heads, "2,1", scores=scores, worst=True).to_dict() == {"encoder.0": [2, 3], "encoder.1": [0]}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("988444", r"keeps 9 heads in encoder\.0, which has only 8 \(character 1\)"),
        ("884944", r"keeps 9 heads in encoder\.3, which has only 8 \(character 4\)"),
        ("88844", r"5 digits for 6 layers \(character 6\)"),
        ("8,8,4", r"gives 3 layers, the model has 6 \(character 5\)"),
        ("8,8,x,4,4,4", r"has 'x' where a number of heads was expected \(character 5\)"),
        ("top:9", r"'top:9', expected a number of layers from 0 to 6 \(character 5\)"),
        ("tpo:3", r"'tpo:3'\. Did you mean 'top'"),
        ("top:1+mdle:2", r"'mdle:2'.*\(character 7\)"),
        ("odd:3", r"odd takes no number \(character 4\)"),
        ("14/31", r"has 2 parts; this model has 1 components"),
        ("ED=3", r"names cross, which this model does not have"),
        ("ES=3,4", r"has '4', expected a component"),
        ("random", r"expected how many heads stay"),
        ("random:x", r"has 'x', expected heads per layer"),
        ("random:150%", r"keeps 150% heads"),
        ("#99", r"keeps #99 heads.*only 48"),
        ("", "is empty"),
    ],
)  # fmt: skip
def test_errors_say_what_and_where(text, told):
    """With the character at which reading stopped."""
    with pytest.raises(PatternError, match=told):
        pattern(model(), text)


def test_what_could_mean_two_things_is_refused():
    """`12` on two layers: one head and two, or twelve heads?"""
    heads = model(layers=2, heads=8)
    with pytest.raises(PatternError, match=r"Write 1,2 or #12"):
        pattern(heads, "12")
    assert len(pattern(heads, "1,2")) == 3
    assert len(pattern(heads, "#12")) == 12


def test_a_layer_pattern_that_splits_a_shared_module_is_refused():
    """ALBERT's one module runs in every layer."""
    from tests.families.tiny import tiny_model

    heads = hp.find_heads(tiny_model("albert", num_hidden_layers=4))
    with pytest.raises(PatternError, match=r"would split encoder\.0.*\[0, 1, 2, 3\]"):
        pattern(heads, "top:1")
    assert pattern(heads, "top:4") == HeadMask.empty(heads)


@given(head_maps(), st.text("0123456789,/=+:%#tombdleEDSranone ", max_size=12))
def test_any_text_gives_a_mask_or_one_of_our_errors(heads, text):
    """Nothing else escapes the grammar."""
    try:
        mask = pattern(heads, text)
    except HeadpruneError:
        return
    assert mask <= HeadMask.full(heads)


@given(st.integers(0, 12), st.integers(0, 12))
def test_cutting_more_layers_contains_cutting_fewer(a, b):
    """top, bottom and middle are nested."""
    few, many = sorted((a, b))
    for word in ("top", "bottom"):
        assert pattern(BERT, f"{word}:{many}") <= pattern(BERT, f"{word}:{few}")


def test_digits_for_other_layers_are_told():
    """Three digits for six layers are read as a count, which nobody meant."""
    with pytest.raises(PatternError, match="as heads per layer it would need 6 digits"):
        pattern(model(), "888")
