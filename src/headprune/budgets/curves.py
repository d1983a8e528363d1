"""Pruning curves: score against share pruned; and the furthest point within a budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from headprune.errors import DataError
from headprune.heads import HeadMap, HeadMask, HeadScores, canonical_component
from headprune.heads.mask import Unit
from headprune.heads.scores import Normalize, select
from headprune.registry import check_finite

Score = Callable[[HeadMask], float]  # how well the model does with only these heads
Rescore = Callable[[HeadMask], HeadScores]


@dataclass(frozen=True)
class Point:
    """One step of a curve."""

    pruned: int
    share: float
    score: float
    kept: dict[str, list[int]]

    def __post_init__(self) -> None:
        if not (0 <= self.share <= 1 and self.pruned >= 0):
            raise DataError(
                f"A point of a curve has {self.pruned} heads pruned, {self.share} of all; expected none or more, and a "
                "share from 0 to 1."
            )


@dataclass(frozen=True)
class Curve:
    """How the score falls as heads go, in one order."""

    order: str
    metric: str
    heads: int
    points: tuple[Point, ...]
    rescored: bool = False
    about: dict[str, Any] = field(default_factory=dict)


def pruning_curve(
    heads: HeadMap,
    scores: HeadScores,
    score: Score,
    *,
    shares: Sequence[float],
    metric: str,
    rescore: Rescore | None = None,
    components: Sequence[str] | None = None,
    at_least: int = 0,
    unit: Unit = "head",
    normalize: Normalize | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Curve:
    """Evaluate the model with more and more heads off.

    One-shot by default: the order is that of `scores` throughout. With `rescore`, heads are scored anew after each
    step with the heads gone so far off, and further ones are taken from the rest.
    """
    if not shares or any(not 0 <= share <= 1 for share in shares):
        raise DataError(f"Found shares {list(shares)}: expected numbers from 0 to 1, at least one.")
    points: list[Point] = []
    mask = HeadMask.full(heads)
    wanted = None if components is None else {canonical_component(name) for name in components}
    within = sum(site.num_heads for site in heads if wanted is None or site.component in wanted)
    if not within:
        known = ", ".join(heads.components) or "none"
        raise DataError(f"There are no heads in {', '.join(sorted(wanted or ()))}. The model has {known}.")
    current = scores
    for share in sorted(shares):
        progress(f"{scores.method} {share:.0%}")
        if rescore is not None and points:
            current = rescore(mask)
        mask = select(
            current, heads, prune=share, components=components, at_least=at_least, unit=unit, normalize=normalize,
            start=mask if rescore is not None else None,
        )  # fmt: skip
        gone = len(heads) - len(mask)
        points.append(Point(gone, gone / within, score(mask), mask.to_dict()))
    return Curve(scores.method, metric, within, tuple(points), rescore is not None)


def furthest_within(curve: Curve, max_drop: float, *, larger_is_better: bool = True) -> Point:
    """The last point of a curve whose score is at most `max_drop` worse than its first, with no worse point before."""
    scores = {f"the score at {point.share:.0%}": point.score for point in curve.points}
    check_finite("A curve within a drop", {"max_drop": max_drop, **scores})
    best = curve.points[0]
    for point in curve.points:
        drop = curve.points[0].score - point.score
        if (drop if larger_is_better else -drop) > max_drop + 1e-12:
            break
        best = point
    return best
