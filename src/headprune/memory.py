"""How much memory there is, and what to say where it is not enough. Looked at before anything large."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from headprune.errors import MemoryLimitError

SHARE = 0.5  # of what is free, that one step may take
LEAST = 1 << 28  # where a system does not tell what is free, or hardly anything is
UNKNOWN = 8 << 30
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_limit: ContextVar[int | None] = ContextVar("headprune_memory", default=None)


def amount_of_memory(text: str) -> int:
    """`8GiB`, `8G` or `8GB` (all the same, in powers of 1024), `512M`, or bytes."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if not match or not (amount := int(float(match[1]) * _UNITS[match[2].upper()])):
        raise MemoryLimitError(f"'{text}' is not an amount of memory. Expected one like 8GiB or 512M.")
    return amount


@contextmanager
def memory_limit(amount: str | int | None) -> Iterator[None]:
    """How much memory a step may take beside the model, until the block ends: `8GiB`, or bytes. Without it, half of
    what is free.

    Example:
        >>> with hp.memory_limit("2GiB"):
        ...     scores = hp.score(model, batches, method="reconstruction")
    """
    before = _limit.get()
    _limit.set(amount_of_memory(amount) if isinstance(amount, str) else amount)
    try:
        yield
    finally:
        _limit.set(before)


def free_memory() -> int:
    """Bytes that this process may still take: of the machine, and of the group of processes that it is in."""
    found = [amount for amount in (_of_machine(), _of_group()) if amount is not None]
    return min(found, default=UNKNOWN)


def memory_for_step() -> int:
    """What was asked for, or half of what is free."""
    asked = _limit.get()
    return asked if asked is not None else max(LEAST, int(SHARE * free_memory()))


def check_memory(size: int, what: str, instead: str) -> None:
    """Better told before than by the system, which ends the process."""
    asked = _limit.get()
    most = free_memory() if asked is None else asked
    if size > most:
        raise MemoryLimitError(
            f"{what} takes {told(size)}; {told(most)} is {'free' if asked is None else 'allowed'}. {instead}"
        )


def told(size: float) -> str:
    return f"{size / (1 << 30):.1f} GiB" if size >= 1 << 30 else f"{size / (1 << 20):,.0f} MiB"


def _of_machine() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return 1024 * int(line.split()[1])
    except (OSError, ValueError):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (AttributeError, ValueError, OSError):  # Windows
        return None


def _of_group() -> int | None:
    """Linux's limits for containers, version 2 and 1; files in the cache count as free."""
    for folder, most, used in (
        ("/sys/fs/cgroup", "memory.max", "memory.current"),
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        try:
            limit, taken = (int(Path(folder, name).read_text(encoding="ascii")) for name in (most, used))
            lines = Path(folder, "memory.stat").read_text(encoding="ascii").splitlines()
            cached = next((int(line.split()[1]) for line in lines if line.split()[0] == "inactive_file"), 0)
            return max(0, limit - taken + cached)
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return None
