"""What heads are worth: sums that merge, views, JSON."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headprune.errors import FileFormatError, MaskError
from headprune.heads import HeadMap, HeadScores
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
