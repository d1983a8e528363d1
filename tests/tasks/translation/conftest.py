"""A tokenizer and a translator for the toy pair."""

from __future__ import annotations

import pytest

from headprune.tasks.translation.presets import Shape, new_translator


@pytest.fixture(scope="module")
def tokenizer(pair_tokenizer):
    return pair_tokenizer


@pytest.fixture(scope="module")
def translator(tokenizer):
    return new_translator(Shape(layers=2, width=32, heads=4, feed_forward=48, positions=64), tokenizer, seed=0).eval()
