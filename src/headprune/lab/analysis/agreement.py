"""Do two scorers see the same heads? Rank correlation, and the overlap of what they would keep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headprune.heads import HeadMap, HeadScores
from headprune.heads.scores import Normalize, select
from headprune.stats import Correlation, correlation


@dataclass(frozen=True)
class Agreement:
    """How alike two scores of the same heads are."""

    correlation: Correlation
    overlap: dict[float, float]  # share kept -> share of the heads kept by the first that the second keeps too


def agreement(
    heads: HeadMap,
    first: HeadScores,
    second: HeadScores,
    *,
    keep: Sequence[float] = (0.25, 0.5, 0.75),
    normalize: Normalize | None = None,
) -> Agreement:
    """Compare two scores. By chance, the overlap is the share that is kept."""
    views = [scores.normalized(normalize) for scores in (first, second)]
    places = [(site.id, head) for site in heads for head in site.kept]
    overlap = {}
    for share in keep:
        mine, theirs = (select(scores, heads, keep=share, normalize=normalize) for scores in (first, second))
        overlap[share] = len(mine & theirs) / max(1, len(mine))
    values = [[view[site][head] or 0.0 for site, head in places] for view in views]
    return Agreement(correlation(*values), overlap)
