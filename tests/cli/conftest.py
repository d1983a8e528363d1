"""Folders with tiny models."""

from __future__ import annotations

import pytest

from tests.families.tiny import tiny_model
from tests.lab.report.conftest import runs  # noqa: F401  # a fixture of both rooms


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Folders with a tiny BERT and a tiny Llama."""
    root = tmp_path_factory.mktemp("models")
    for family in ("bert", "llama"):
        tiny_model(family).save_pretrained(root / family)
    (root / "bert" / "vocab.txt").write_text("hello")
    return root
