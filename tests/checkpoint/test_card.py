"""The card of a pruned model."""

from __future__ import annotations


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
