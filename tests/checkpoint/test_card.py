"""The card of a pruned model."""

from __future__ import annotations

import copy

import pytest
from transformers import AutoModelForSequenceClassification

from headprune.checkpoint.pretrained import END, model_card
from headprune.errors import CheckpointError


def test_the_model_card_lists_what_was_removed_by_what_and_on_what(pruned, folder):
    """A card that was there keeps its own text."""
    card = (folder / "README.md").read_text()
    assert "5 of 8 attention heads were removed" in card
    assert "| encoder.1 | 3 | 4 | 2 |" in card
    assert "5 heads by a coin, on toy data" in card
    (folder / "README.md").write_text("# My model\n\nHello.\n")
    pruned.save_pretrained(folder)
    pruned.save_pretrained(folder)
    card = (folder / "README.md").read_text()
    assert card.startswith("# My model\n\nHello.")
    assert card.count("## Removed attention heads") == 1


def test_the_card_shows_the_auto_class_that_was_saved(pruned, folder):
    """A classifier is loaded as one, not as its base."""
    kind = type(pruned).__name__
    assert kind == "BertForSequenceClassification"
    card = (folder / "README.md").read_text()
    assert "AutoModelForSequenceClassification.from_pretrained(" in card
    assert "import AutoModelForSequenceClassification\n" in card
    loaded = AutoModelForSequenceClassification.from_pretrained(folder)
    assert type(loaded).__name__ == kind


def test_text_of_a_config_is_never_markup_in_the_card(pruned):
    """An element, a link or a heading in a config's history or names stands there as it is, on one line."""
    entry = copy.deepcopy(pruned.config.headprune)
    bad = "x<script>alert(1)</script>\n\n# heading\n<!-- headprune: end --> [a](https://evil.example) `b` |"
    entry["history"] = [{**entry["history"][0], "by": bad, "on": bad, "recovered": bad}]
    named = copy.deepcopy(entry)
    named["heads"]["sites"][0]["id"] = bad
    with pytest.raises(CheckpointError, match="A site has the id"):
        model_card(named, "", "")
    card = model_card(entry, "", "")
    for mark in ("<script", "</script", "\n# heading", "[a](", "`b`"):
        assert mark not in card.replace(f"\\{mark[0]}", "?"), mark
    assert card.count(END) == 1
    assert "alert(1)" in card
