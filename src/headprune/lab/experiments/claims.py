"""What a paper says, held against what was found here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from headprune.lab.experiments.presets import Claim, Preset
from headprune.lab.experiments.values import ENOUGH, Observed
from headprune.stats import mean_interval

Standing = Literal["agrees", "disagrees", "open", "not done"]


@dataclass(frozen=True)
class Verdict:
    """A claim with what was found. Fewer than three seeds are told, but are no finding (`is_finding`)."""

    text: str
    expected: str
    verdict: Standing
    gaps: tuple[float, ...] = ()  # the value minus what it is compared with, a seed each
    interval: tuple[float, float] | None = None  # 95 % t interval of their mean

    @property
    def is_finding(self) -> bool:
        return len(self.gaps) >= ENOUGH and self.verdict in ("agrees", "disagrees")

    @property
    def mean(self) -> float | None:
        return sum(self.gaps) / len(self.gaps) if self.gaps else None

    def told(self) -> str:
        """The verdict in words."""
        if self.verdict in ("not done", "open") or self.is_finding:
            return {"open": "open: seeds differ too much to say"}.get(self.verdict, self.verdict)
        return f"{self.verdict}, {len(self.gaps)} seed{'s' if len(self.gaps) > 1 else ''}: no claim"

    def to_dict(self) -> dict[str, Any]:
        return {
            "text": self.text, "expected": self.expected, "verdict": self.verdict, "mean": self.mean,
            "gaps": list(self.gaps), "interval": None if self.interval is None else list(self.interval),
            "finding": self.is_finding,
        }  # fmt: skip


def verdicts(preset: Preset, scale: str, values: Sequence[Observed]) -> list[Verdict]:
    """Every claim of a preset against its values."""
    by_name = {value.name: value for value in values}
    return [_judged(claim, by_name) for claim in preset.scale(scale).claims]


def _judged(claim: Claim, values: Mapping[str, Observed]) -> Verdict:
    expected = _expected(claim)
    gaps = _gaps(claim, values)
    if not gaps:
        return Verdict(claim.text, expected, "not done")
    if len(gaps) < ENOUGH:
        mean = sum(gaps) / len(gaps)
        return Verdict(claim.text, expected, "agrees" if _holds(claim, mean, mean) else "disagrees", gaps)
    found = mean_interval(list(gaps))
    low, high = found.low, found.high
    verdict: Standing = "agrees" if _holds(claim, low, high) else "disagrees" if _fails(claim, low, high) else "open"
    return Verdict(claim.text, expected, verdict, gaps, (low, high))


def _gaps(claim: Claim, values: Mapping[str, Observed]) -> tuple[float, ...]:
    """By seed; what is planned only once (a model that all samplings start from) counts for every seed."""
    value = values[claim.value]
    if claim.against is None:
        assert claim.than is not None  # the reader saw to it
        return tuple(number - claim.than for number in value.found)
    other = values[claim.against]
    if other.planned == 1 and other.found:
        return tuple(number - other.found[0] for number in value.found)
    if value.planned == 1 and value.found:
        return tuple(value.found[0] - number for number in other.found)
    theirs = dict(zip(other.seeds, other.found, strict=True))
    pairs = zip(value.seeds, value.found, strict=True)
    return tuple(number - theirs[seed] for seed, number in pairs if seed in theirs)


def _holds(claim: Claim, low: float, high: float) -> bool:
    """All of the interval is where the claim says."""
    if claim.relation == "above":
        return low > claim.by
    if claim.relation == "below":
        return high < -claim.by
    return -claim.by <= low and high <= claim.by


def _fails(claim: Claim, low: float, high: float) -> bool:
    """None of the interval is where the claim says."""
    if claim.relation == "above":
        return high <= claim.by
    if claim.relation == "below":
        return low >= -claim.by
    return high < -claim.by or low > claim.by


def _expected(claim: Claim) -> str:
    other = f"'{claim.against}'" if claim.against is not None else f"{claim.than:g}"
    if claim.relation == "within":
        return f"'{claim.value}' within {claim.by:g} of {other}"
    if not claim.by:
        return f"'{claim.value}' {claim.relation} {other}"
    # A negative `by` allows a loss: above "the other - 0.5".
    sign = "+" if (claim.by > 0) == (claim.relation == "above") else "-"
    return f"'{claim.value}' {claim.relation} {other} {sign} {abs(claim.by):g}"
