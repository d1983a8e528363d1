"""`headprune bench`: where the leaderboard went."""

from __future__ import annotations

from headprune.errors import HeadpruneError


def bench() -> None:
    """Moved to benchmarks/leaderboard in the repository."""
    raise HeadpruneError(
        "The leaderboard is no command any more. In headprune's repository, `python -m benchmarks.leaderboard` has "
        "the same options, and benchmarks/leaderboard/run.sh makes the whole board."
    )
