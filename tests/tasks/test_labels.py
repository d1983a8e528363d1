"""Names and numbers of classes."""

from __future__ import annotations

import pytest

from headprune.errors import DataError
from headprune.tasks import Source, find_task
from headprune.tasks.task import Labels


def test_labels_in_words(tmp_path):
    """MNLI's classes, and what is not one of them."""
    lines = ["sentence1\tsentence2\tgold_label", "a\tb\tneutral", "c\td\tcontradiction"]
    (tmp_path / "dev_matched.tsv").write_text("\n".join(lines))
    (tmp_path / "dev_mismatched.tsv").write_text("\n".join([*lines, "e\tf\tneutrl"]))
    assert find_task("mnli").texts(Source(tmp_path), "dev")[2] == [1.0, 2.0]
    with pytest.raises(DataError, match=r"example 3: the label is 'neutrl'. Did you mean 'neutral'"):
        find_task("mnli").texts(Source(tmp_path), "dev-mm")


def test_numbers_that_do_not_begin_at_0_are_names_of_classes():
    """Stars from 1 to 5 are five classes; the same stars mean the same on dev, and others are refused."""
    stars = Labels(0).learned(["5", "1", "10", "2", "2"], "reviews.csv")
    assert (stars.count, stars.names) == (4, ("1", "2", "5", "10"))
    assert [stars.number(text, "dev") for text in ("1", "10", "5.0")] == [0.0, 3.0, 2.0]
    with pytest.raises(DataError, match="the label is '3'"):
        stars.number("3", "dev")
    assert Labels(0).learned(["1", "0", "2"], "reviews.csv") == Labels(3)
    assert stars.model_options()["id2label"][3] == "10"
