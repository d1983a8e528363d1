"""What a paper says, held against what was found here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

from headprune.lab.experiments.presets import Claim, Preset
from headprune.lab.experiments.values import ENOUGH, Observed
from headprune.stats import mean_interval

Standing = Literal["holds", "does not hold", "open"]


@dataclass(frozen=True)
class Verdict:
    """A claim with what was found. It holds, or does not, only if the 95 % t interval over three seeds or more says so
    (arithmetic needs no seeds); everything else is open."""

    claim: Claim
    expected: str
    verdict: Standing
    gaps: tuple[float, ...] = ()  # the value minus what it is compared with, a seed each
    interval: tuple[float, float] | None = None  # 95 % t interval of their mean
    value: Observed | None = None
    against: Observed | None = None

    @property
    def text(self) -> str:
        return self.claim.text

    @property
    def is_finding(self) -> bool:
        return self.verdict != "open"

    @property
    def mean(self) -> float | None:
        return sum(self.gaps) / len(self.gaps) if self.gaps else None

    def told(self) -> str:
        """The verdict in words."""
        if self.verdict != "open":
            return self.verdict
        if len(self.gaps) < ENOUGH:
            return f"open: {len(self.gaps)} of {ENOUGH} seeds"
        return "open: seeds differ too much to say"

    @property
    def paper(self) -> str:
        """What the paper found: the gap of its own numbers, or its words."""
        if self.claim.paper is not None:
            return self.claim.paper if isinstance(self.claim.paper, str) else f"{self.claim.paper:+.4g}"
        mine = None if self.value is None else self.value.paper
        theirs = None if self.against is None else self.against.paper
        if isinstance(mine, str) or mine is None:
            return mine or "–"
        if self.against is None:
            return f"{mine:.4g}"
        return "–" if not isinstance(theirs, int | float) else f"{mine - self.claim.times * theirs:+.4g}"

    @property
    def here(self) -> str:
        """The mean over seeds with its interval: of the value where a number is asked for, else of the gap."""
        if self.mean is None:
            return "–"
        shift, sign = (self.claim.than or 0.0, "") if self.claim.against is None else (0.0, "+")
        told = f"{self.mean + shift:{sign}.4g}"
        if self.interval is None or self.interval[0] == self.interval[1]:
            return told
        low, high = (end + shift for end in self.interval)
        return f"{told} ({low:{sign}.4g} to {high:{sign}.4g})"

    def to_dict(self) -> dict[str, Any]:
        return {
            "text": self.text, "expected": self.expected, "verdict": self.verdict, "mean": self.mean,
            "gaps": list(self.gaps), "interval": None if self.interval is None else list(self.interval),
            "finding": self.is_finding, "paper": self.paper, "cited": self.claim.cited, "reading": self.claim.reading,
        }  # fmt: skip


@dataclass(frozen=True)
class Counts:
    """How many statements hold, do not, are left open by the spread over seeds, and have fewer than three seeds."""

    holds: int = 0
    fails: int = 0
    spread: int = 0
    unfinished: int = 0

    @classmethod
    def of(cls, found: Iterable[Verdict]) -> Self:
        kinds = Counter(
            one.verdict if one.is_finding else "spread" if len(one.gaps) >= ENOUGH else "unfinished" for one in found
        )
        return cls(kinds["holds"], kinds["does not hold"], kinds["spread"], kinds["unfinished"])

    @property
    def all(self) -> int:
        return self.holds + self.fails + self.spread + self.unfinished

    def message(self) -> str:
        """Of all statements, in words."""
        if not self.all:
            return "No statement of a paper was tested."
        parts = [f"{self.holds} hold", f"{self.fails} do not", f"{self.spread + self.unfinished} are open"]
        why = [f"{self.spread} because seeds differ"] if self.spread else []
        why += [f"{self.unfinished} with fewer than {ENOUGH} seeds"] if self.unfinished else []
        told = f" ({', '.join(why)})" if why else ""
        return f"Of {self.all} statement{'s' if self.all > 1 else ''} of the papers, {', '.join(parts)}{told}."


def verdicts(preset: Preset, scale: str, values: Sequence[Observed]) -> list[Verdict]:
    """Every claim of a preset against its values."""
    by_name = {value.name: value for value in values}
    return [_judged(claim, by_name) for claim in preset.scale(scale).claims]


def _judged(claim: Claim, values: Mapping[str, Observed]) -> Verdict:
    expected = _expected(claim)
    gaps, value = _gaps(claim, values), values[claim.value]
    other = None if claim.against is None else values[claim.against]
    exact = value.exact and (other is None or other.exact)
    if exact and gaps:
        low = high = gaps[0]
    elif len(gaps) < ENOUGH:
        return Verdict(claim, expected, "open", gaps, None, value, other)
    else:
        found = mean_interval(list(gaps))
        low, high = found.low, found.high
    verdict: Standing = "open"
    if _holds(claim, low, high):
        verdict = "holds"
    elif _fails(claim, low, high):
        verdict = "does not hold"
    return Verdict(claim, expected, verdict, gaps, (low, high), value, other)


def _gaps(claim: Claim, values: Mapping[str, Observed]) -> tuple[float, ...]:
    """By seed; what is planned only once (a model that all samplings start from) counts for every seed."""
    value = values[claim.value]
    if claim.against is None:
        assert claim.than is not None  # the reader saw to it
        return tuple(number - claim.than for number in value.found)
    other = values[claim.against]
    times = claim.times
    if other.planned == 1 and other.found:
        return tuple(number - times * other.found[0] for number in value.found)
    if value.planned == 1 and value.found:
        return tuple(value.found[0] - times * number for number in other.found)
    theirs = {seed: times * number for seed, number in zip(other.seeds, other.found, strict=True)}
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
    many = "" if claim.times == 1 else f"{claim.times:g} x "
    other = f"{many}'{claim.against}'" if claim.against is not None else f"{claim.than:g}"
    if claim.relation == "within":
        return f"'{claim.value}' within {claim.by:g} of {other}"
    if not claim.by:
        return f"'{claim.value}' {claim.relation} {other}"
    # A negative `by` allows a loss: above "the other - 0.5".
    sign = "+" if (claim.by > 0) == (claim.relation == "above") else "-"
    return f"'{claim.value}' {claim.relation} {other} {sign} {abs(claim.by):g}"
