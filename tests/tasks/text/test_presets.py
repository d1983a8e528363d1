"""Models and schedules of language models."""

from __future__ import annotations

from headprune.tasks.text.presets import Shape, new_language_model
from headprune.tasks.text.symbols import make_symbols


def test_presets_fit_smaller_vocabularies():
    """Cutoffs beyond the vocabulary are left out, and rows of distances follow a longer memory."""
    small = make_symbols(" ".join(f"w{n}" for n in range(30)), "words")
    shape = Shape(layers=1, width=16, heads=2, persistent=2, memory=600, cutoffs=(10, 20_000), position_rows=512)
    config = new_language_model(shape, small, 0).config
    assert (config.cutoffs, config.table_rows) == ([10], 601)
