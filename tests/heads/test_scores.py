"""What heads are worth: sums that merge, views, JSON."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headprune.errors import FileFormatError, MaskError, UnknownNameError
from headprune.heads import HeadMap, HeadScores
from headprune.heads.scores import select
from tests.strategies import TWO, head_maps, head_scores, site


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


def test_files_of_scores_must_agree_with_themselves():
    """Sums without squares are refused."""
    with pytest.raises(FileFormatError, match="same sites"):
        HeadScores.from_dict({"sums": {"encoder.0": [1.0]}, "squares": {}, "counts": {"encoder.0": 1}})


def scores_of(heads, **rows):
    return HeadScores.from_values(heads, {name.replace("_", "."): row for name, row in rows.items()}, method="toy")


SCORES = scores_of(TWO, encoder_0=[4.0, 3.0, 2.0, 1.0], encoder_1=[10.0, 20.0, 30.0, 40.0])


def test_the_lowest_heads_go_first_after_normalising_each_site():
    """Michel's default view; without it the site with the larger numbers keeps more."""
    assert select(SCORES, prune=4).to_dict() == {"encoder.0": [0, 1], "encoder.1": [2, 3]}
    assert select(SCORES, prune=4, normalize="none").to_dict() == {"encoder.0": [], "encoder.1": [0, 1, 2, 3]}


def test_the_best_heads_of_every_site_can_be_protected():
    """At least n stay; fewer may go than asked for."""
    mask = select(SCORES, prune=6, normalize="none", at_least=1)
    assert mask.to_dict() == {"encoder.0": [0], "encoder.1": [3]}
    assert len(select(SCORES, prune=1.0, at_least=2)) == 4


def test_counting_per_site_and_per_component():
    """The share is taken of each."""
    assert [len(select(SCORES, prune=0.5, per="site").kept(s.id)) for s in TWO] == [2, 2]
    three = HeadMap((site("encoder", 0, 4), site("decoder", 0, 4), site("cross", 0, 4)))
    scores = scores_of(three, encoder_0=[1, 2, 3, 4], decoder_0=[1, 2, 3, 4], cross_0=[1, 2, 3, 4])
    mask = select(scores, three, prune=0.25, per="component")
    assert mask.to_dict() == {"encoder.0": [1, 2, 3], "decoder.0": [1, 2, 3], "cross.0": [1, 2, 3]}
    assert len(select(scores, three, prune=1.0, components=["ED"])) == 8


def test_ties_go_to_the_earlier_head():
    """As in Michel et al.'s stable sort: lower layer, then lower head."""
    even = scores_of(TWO, encoder_0=[1.0] * 4, encoder_1=[1.0] * 4)
    assert select(even, prune=5).to_dict() == {"encoder.0": [], "encoder.1": [1, 2, 3]}


def test_groups_go_together_with_the_sum_of_their_scores():
    """Grouped-query attention: three groups of two."""
    heads = HeadMap((site("decoder", 0, 6, kv_heads=3),))
    scores = scores_of(heads, decoder_0=[5.0, 0.0, 2.0, 2.0, 1.0, 9.0])
    assert select(scores, heads, prune=1, unit="group").to_dict() == {"decoder.0": [0, 1, 4, 5]}
    assert select(scores, heads, prune=1, unit="query").to_dict() == {"decoder.0": [0, 3, 5]}
    with pytest.raises(MaskError, match="find_heads"):
        select(scores, prune=1, unit="group")


@given(st.data(), st.floats(0, 1), st.floats(0, 1), st.sampled_from(["model", "component", "site"]))
def test_pruning_more_never_brings_a_head_back(data, share, more, per):
    """What a mild cut removes, a harsher one removes too."""
    heads = data.draw(head_maps())
    scores = data.draw(head_scores(heads))
    mild, harsh = sorted((share, more))
    assert select(scores, heads, prune=harsh, per=per) <= select(scores, heads, prune=mild, per=per)


@given(st.data(), st.floats(0, 1))
def test_as_many_go_as_asked_for(data, share):
    """floor(share x N + 1e-9), and keep is the rest."""
    heads = data.draw(head_maps())
    scores = data.draw(head_scores(heads))
    import math

    assert len(heads) - len(select(scores, heads, prune=share)) == math.floor(share * len(heads) + 1e-9)
    assert len(select(scores, heads, keep=len(heads) // 2)) == len(heads) // 2


def test_scores_of_another_model_are_refused():
    """Or of heads that are gone."""
    with pytest.raises(MaskError, match="another model"):
        select(SCORES, HeadMap((site("encoder", 0, 6),)), prune=1)
    pruned = scores_of(HeadMap((site("encoder", 0, 4, kept=(0, 1)),)), encoder_0=[1.0, 2.0])
    with pytest.raises(MaskError, match=r"encoder\.0:2 has no score"):
        select(pruned, HeadMap((site("encoder", 0, 4),)), prune=1)
    with pytest.raises(UnknownNameError, match="Did you mean 'component'"):
        select(SCORES, prune=1, per="compnent")


def test_heads_that_are_off_stay_off_and_count():
    """Re-scoring takes further heads from the rest, whatever the new scores say of those already gone."""
    start = select(SCORES, prune=2)
    assert start.to_dict() == {"encoder.0": [0, 1, 2], "encoder.1": [1, 2, 3]}
    new = scores_of(TWO, encoder_0=[1.0, 2.0, 3.0, 99.0], encoder_1=[99.0, 1.0, 2.0, 3.0])
    assert select(new, prune=4, start=start).to_dict() == {"encoder.0": [1, 2], "encoder.1": [2, 3]}
    assert select(new, prune=1, start=start) == start


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), float("-inf")])
def test_scores_that_are_no_numbers_are_refused(odd):
    """One of them would decide which of the others go."""
    with pytest.raises(MaskError, match=r"encoder\.0:1 is"):
        select(scores_of(TWO, encoder_0=[4.0, odd, 2.0, 1.0], encoder_1=[1.0, 2.0, 3.0, 4.0]), prune=3)


def test_what_nobody_can_mean_is_refused():
    """Names of options, components that the model does not have, sites without numbers."""
    with pytest.raises(UnknownNameError, match="Did you mean 'site'"):
        select(SCORES, prune=1, normalize="sites")
    with pytest.raises(UnknownNameError, match="No rounding called 'up'"):
        select(SCORES, prune=0.3, rounding="up")
    with pytest.raises(MaskError, match="no decoder heads; its heads are encoder"):
        select(SCORES, prune=1, components=["decoder"])
    with pytest.raises(MaskError, match=r"no numbers for encoder\.1"):
        scores_of(TWO, encoder_0=[1, 2, 3, 4])
    assert select(SCORES, prune=2, components="encoder") == select(SCORES, prune=2, components=["ES"])
