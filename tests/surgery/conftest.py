"""A model with grouped queries."""

from __future__ import annotations

import pytest

from tests.families.tiny import tiny_model


@pytest.fixture(scope="module")
def llama():
    """Six heads in three groups."""
    return tiny_model("llama", num_attention_heads=6, num_key_value_heads=3, hidden_size=48)
