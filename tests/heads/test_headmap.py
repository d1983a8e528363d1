"""Where the heads are: order, count, JSON."""

from __future__ import annotations

import pytest
from hypothesis import given

from headprune.errors import UnknownNameError
from headprune.heads import HeadMap
from tests.strategies import TWO, head_maps, site


def test_sites_come_in_order_of_tower_component_and_layer():
    """Whatever order they were found in."""
    found = (site("cross", 0, 2), site("decoder", 10, 2), site("decoder", 2, 2), site("encoder", 0, 2))
    assert [s.id for s in HeadMap(found)] == ["encoder.0", "decoder.2", "decoder.10", "cross.0"]


def test_a_head_map_counts_heads_and_shows_a_table():
    """`len` is heads, not sites."""
    assert len(TWO) == 8
    assert "encoder.1" in str(TWO)
    assert "8 heads in 2 sites" in str(TWO)
    with pytest.raises(UnknownNameError, match=r"encoder\.0"):
        TWO["encoder.9"]


@given(head_maps(pruned=True))
def test_a_head_map_survives_json(heads):
    """JSON out and in gives an equal value."""
    assert HeadMap.from_json(heads.to_json()) == heads
    assert hash(HeadMap.from_json(heads.to_json())) == hash(heads)
