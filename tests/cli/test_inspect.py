"""`headprune inspect`."""

from __future__ import annotations

from headprune.heads import HeadMap
from tests.command import call


def test_inspect_shows_a_table_and_a_picture(models, tmp_path):
    """As text, as JSON, and as files beside each other."""
    text = call("inspect", models / "bert", "--out", tmp_path)
    assert "8 heads in 2 sites" in text
    assert "encoder.1  ■ ■ ■ ■" in text
    heads = HeadMap.from_json((tmp_path / "heads.json").read_text())
    assert len(heads) == 8
    assert "<svg" in (tmp_path / "heads.svg").read_text()
    assert HeadMap.from_json(call("inspect", models / "bert", "--json")) == heads
