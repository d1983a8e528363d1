"""What the heads are worth."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from headprune import files
from headprune.errors import FileFormatError, MaskError, UnknownNameError
from headprune.heads.headmap import HeadId, HeadMap
from headprune.registry import hint

# Files of 0.1.0 do not say whether their scores compare across sites: these did. Today a scorer says it.
_COMPARABLE_010 = ("ablation", "curvature", "metric-ablation", "random", "reconstruction", "sensitivity-entropy")

_TOLD = ("share_reused",)  # options that tell of the work, which differs from part to part

LARGEST = 1e150  # a score whose square is a number

Row = tuple[float | None, ...]  # one number per original head of a site; None where the head was removed
Normalize = Literal["site", "none"]


@dataclass(frozen=True, kw_only=True)
class HeadScores:
    """A number per head; larger is always more worth keeping.

    Holds sums, sums of squares and sample counts, so that partial scores can be added up (`a + b`).
    """

    method: str
    sums: Mapping[str, Row]
    squares: Mapping[str, Row]
    counts: Mapping[str, float]  # samples behind each site's sums
    options: Mapping[str, Any] = field(default_factory=dict)
    data: str = ""
    comparable: bool = False  # whether a number means the same in every site

    @classmethod
    def from_values(
        cls, heads: HeadMap, values: Mapping[str, Sequence[float]], *, method: str, **about: Any
    ) -> HeadScores:
        """Scores that are not means: one number per *current* head of each site, in order."""
        sums: dict[str, Row] = {}
        for site in heads:
            row: list[float | None] = [None] * site.original_num_heads
            if site.id not in values:
                raise MaskError(f"Found no numbers for {site.id}; expected {site.num_heads}, one for each head.")
            given = list(values[site.id])
            if len(given) != site.num_heads:
                raise MaskError(f"{site.id} has {site.num_heads} heads, found {len(given)} numbers for it.")
            for index, value in zip(site.kept, given, strict=True):
                row[index] = float(value)
            sums[site.id] = tuple(row)
        squares = {site: tuple(None if x is None else x * x for x in row) for site, row in sums.items()}
        return cls(method=method, sums=sums, squares=squares, counts=dict.fromkeys(sums, 1.0), **about)

    @property
    def scores(self) -> dict[str, Row]:
        """The mean per head."""
        return {site: _divided(row, self.counts[site]) for site, row in self.sums.items()}

    @property
    def standard_errors(self) -> dict[str, Row]:
        """The standard error of each mean; None where there are fewer than two samples."""
        return {
            site: tuple(
                None if total is None or square is None else _standard_error(total, square, self.counts[site])
                for total, square in zip(row, self.squares[site], strict=True)
            )
            for site, row in self.sums.items()
        }

    def __getitem__(self, head: str | HeadId) -> float | None:
        parsed = HeadId.parse(head)
        return self.scores[parsed.site][parsed.index]

    def __add__(self, other: HeadScores) -> HeadScores:
        """Scores over both sets of samples. Only scores of the same method and the same heads add up."""
        if (self.method, _how(self.options)) != (other.method, _how(other.options)):
            raise MaskError(
                f"Cannot merge '{self.method}' {_how(self.options)} with '{other.method}' {_how(other.options)}: "
                "merge scores of one method with the same options."
            )
        if self._shape() != other._shape():
            raise MaskError("Cannot merge scores of different models, or of a model before and after pruning.")
        return replace(
            self,
            sums={site: _add(row, other.sums[site]) for site, row in self.sums.items()},
            squares={site: _add(row, other.squares[site]) for site, row in self.squares.items()},
            counts={site: count + other.counts[site] for site, count in self.counts.items()},
            options={**self.options, **self._told_of_both(other)},
            comparable=self.comparable and other.comparable,
        )

    def _told_of_both(self, other: HeadScores) -> dict[str, float]:
        """What each tells of its own work, by how much work it was."""
        mine, others = sum(self.counts.values()), sum(other.counts.values())
        return {
            name: round((self.options[name] * mine + other.options[name] * others) / (mine + others), 4)
            for name in _TOLD
            if name in self.options and name in other.options and mine + others
        }

    @property
    def view(self) -> Normalize:
        """How heads of different sites compare: as they are where the score means the same everywhere (a change of
        the loss or the metric, a random number), after dividing each site by its norm otherwise (Michel et al.)."""
        return "none" if self.comparable else "site"

    def normalized(self, by: Normalize | None = None) -> dict[str, Row]:
        """What selection compares: by default the scores' own `view`; "site": each site's divided by their L2 norm
        (Michel et al.); "none": as they are."""
        by = by or self.view
        if by not in ("site", "none"):
            raise UnknownNameError(f"No normalisation called '{by}'. {hint(by, ('site', 'none'))}")
        if by == "none":
            return self.scores
        rows = {}
        for site, row in self.scores.items():
            norm = math.sqrt(math.fsum(x * x for x in row if x is not None)) + 1e-20
            rows[site] = _divided(row, norm)
        return rows

    def to_dict(self) -> dict[str, Any]:
        return {
            "method": self.method,
            "options": dict(self.options),
            "data": self.data,
            "comparable": self.comparable,
            "scores": {site: list(row) for site, row in self.scores.items()},
            "standard_errors": {site: list(row) for site, row in self.standard_errors.items()},
            "sums": {site: list(row) for site, row in self.sums.items()},
            "squares": {site: list(row) for site, row in self.squares.items()},
            "counts": dict(self.counts),
        }

    def to_json(self) -> str:
        return files.dump("scores", self.to_dict())

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> HeadScores:
        sums, squares = _rows(content.get("sums"), "sums"), _rows(content.get("squares"), "squares")
        counts = content.get("counts")
        if not isinstance(counts, Mapping) or not all(_is_number(n) and n > 0 for n in counts.values()):
            raise FileFormatError("Scores: 'counts' must be a table of site id to a positive number of samples.")
        if not (set(sums) == set(squares) == set(counts)):
            raise FileFormatError("Scores: 'sums', 'squares' and 'counts' must name the same sites.")
        for site, row in sums.items():
            if [x is None for x in row] != [x is None for x in squares[site]]:
                raise FileFormatError(f"Scores: 'sums' and 'squares' of {site} have different heads.")
        options = content.get("options", {})
        if not isinstance(options, Mapping):
            raise FileFormatError("Scores: 'options' must be a table.")
        method = str(content.get("method", ""))
        comparable = content.get("comparable", method in _COMPARABLE_010)
        if not isinstance(comparable, bool):
            raise FileFormatError(f"Scores: 'comparable' is {comparable!r}; expected true or false.")
        made = cls(
            method=method,
            comparable=comparable,
            options=dict(options),
            data=str(content.get("data", "")),
            sums=sums,
            squares=squares,
            counts={site: float(n) for site, n in counts.items()},
        )
        for site, row in made.scores.items():
            if not all(x is None or abs(x) <= LARGEST for x in row):
                raise FileFormatError(
                    f"Scores: a score of {site} is larger than {LARGEST:g}. Compute the scores again."
                )
        return made

    @classmethod
    def from_json(cls, text: str) -> HeadScores:
        return cls.from_dict(files.load("scores", text))

    def _shape(self) -> dict[str, list[bool]]:
        return {site: [x is None for x in row] for site, row in self.sums.items()}


def _divided(row: Row, by: float) -> Row:
    return tuple(None if x is None else x / by for x in row)


def _how(options: Mapping[str, object]) -> dict[str, object]:
    """Options that scores must have in common to be added up."""
    return {name: value for name, value in options.items() if name not in _TOLD}


def _add(mine: Row, theirs: Row) -> Row:
    return tuple(None if a is None or b is None else a + b for a, b in zip(mine, theirs, strict=True))


def _standard_error(total: float, square: float, count: float) -> float | None:
    if count < 2:
        return None
    variance = max(0.0, (square - total * total / count) / (count - 1))
    return math.sqrt(variance / count)


def _is_number(value: object) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return math.isfinite(value) if isinstance(value, float) else abs(value) < 10**300  # larger ones are no float


def _rows(value: object, name: str) -> dict[str, Row]:
    if not isinstance(value, Mapping):
        raise FileFormatError(f"Scores: '{name}' must be a table of site id to one number (or null) per head.")
    rows: dict[str, Row] = {}
    for site, row in value.items():
        if not isinstance(row, list | tuple) or not all(x is None or _is_number(x) for x in row):
            raise FileFormatError(f"Scores: '{name}' of {site} must be a list of finite numbers or null.")
        rows[str(site)] = tuple(None if x is None else float(x) for x in row)
    return rows
