"""Amounts of memory, and what is told where there is not enough."""

from __future__ import annotations

import pytest

import headprune as hp
from headprune.errors import MemoryLimitError
from headprune.memory import amount_of_memory, check_memory, free_memory, memory_for_step


def test_amounts_are_read_as_people_write_them():
    """GiB, GB and G are the same."""
    assert amount_of_memory("8GiB") == amount_of_memory("8 gb") == amount_of_memory("8G") == 8 << 30
    assert amount_of_memory("1.5M") == 3 << 19
    for text in ("", "much", "0", "-1G", "8 GiG"):
        with pytest.raises(MemoryLimitError, match="8GiB"):
            amount_of_memory(text)


def test_a_limit_holds_inside_its_block():
    """Without one, a share of what is free."""
    assert 0 < memory_for_step() <= free_memory() or free_memory() < 1 << 29
    with hp.memory_limit("3GiB"):
        assert memory_for_step() == 3 << 30
        with pytest.raises(MemoryLimitError, match=r"A table takes 4\.0 GiB; 3\.0 GiB is allowed\. Take fewer\."):
            check_memory(4 << 30, "A table", "Take fewer.")
    check_memory(1, "Nothing", "")
