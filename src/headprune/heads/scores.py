"""What the heads are worth; and from that to a mask: which heads go first, and how many."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from headprune import files
from headprune.errors import FileFormatError, MaskError, UnknownNameError
from headprune.heads.headmap import HeadId, HeadMap, Site, SiteName, canonical_component, check_heads
from headprune.heads.mask import HeadMask, Unit, heads_to_prune, refuse_nothing
from headprune.heads.show import Picture, frame, head_cells, neuron_sites
from headprune.registry import hint

# Files of 0.1.0 do not say whether their scores compare across sites: these did. Today a scorer says it.
_COMPARABLE_010 = ("ablation", "curvature", "metric-ablation", "random", "reconstruction", "sensitivity-entropy")

_TOLD = ("share_reused",)  # options that tell of the work, which differs from part to part

LARGEST = 1e150  # a score whose square is a number

Row = tuple[float | None, ...]  # one number per original head of a site; None where the head was removed
Normalize = Literal["site", "none"]


@dataclass(frozen=True, kw_only=True, repr=False)
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

    def __repr__(self) -> str:
        count = sum(value is not None for row in self.sums.values() for value in row)
        return f"HeadScores({self.method} on {self.data or 'unnamed data'}: {count} heads in {len(self.sums)} sites)"

    def plot(self) -> Picture:
        """A map, the darker the more a head is worth. A notebook shows it; `.save(path)`."""
        return head_cells(dict(self.normalized()), title=repr(self), neurons=neuron_sites(self.sums))

    def _repr_html_(self) -> str:
        return self.plot().svg

    def to_frame(self) -> Any:
        """A frame of pandas: a row a head, with its score and standard error; None where it was removed."""
        errors = self.standard_errors
        return frame([
            {"site": site, "head": head, "score": value, "standard_error": errors[site][head]}
            for site, row in self.scores.items() for head, value in enumerate(row)
        ])  # fmt: skip

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
    def from_dict(cls, content: Mapping[str, object]) -> HeadScores:
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
    check_heads((len(row) for row in value.values() if isinstance(row, list)), len(value), f"Scores, '{name}'")
    rows: dict[str, Row] = {}
    for site, row in value.items():
        if not isinstance(row, list | tuple) or not all(x is None or _is_number(x) for x in row):
            raise FileFormatError(f"Scores: '{name}' of {site} must be a list of finite numbers or null.")
        rows[str(site)] = tuple(None if x is None else float(x) for x in row)
    return rows


Per = Literal["model", "component", "site"]


def select(
    scores: HeadScores,
    heads: HeadMap | None = None,
    *,
    prune: float | int | None = None,
    keep: float | int | None = None,
    per: Per = "model",
    components: str | Iterable[str] | None = None,
    at_least: int = 0,
    unit: Unit = "head",
    normalize: Normalize | None = None,
    rounding: Literal["floor", "ceil"] = "floor",
    start: HeadMask | None = None,
    refuse_none: bool = False,
) -> HeadMask:
    """Keep the best heads: `hp.select` without its budgets, and explained there.

    `refuse_none`: a share of which nothing comes is an error. On a curve it is a point.
    """
    if per not in ("model", "component", "site"):
        raise UnknownNameError(f"No way of counting called '{per}'. {hint(per, ('model', 'component', 'site'))}")
    if heads is None:
        if unit != "head":
            raise MaskError(f"unit='{unit}' needs to know the groups: pass heads=find_heads(model).")
        heads = plain_map(scores)
    check_fit(scores, heads)
    wanted = _wanted(components, heads)
    values = scores.normalized(normalize)
    gone: list[HeadId] = []
    sizes: list[int] = []
    for sites in _pools([site for site in heads if wanted is None or site.component in wanted], per):
        pool = [members for site in sites for members in units_of_site(site, unit, values[site.id])]
        sizes.append(len(pool))
        amount = heads_to_prune(len(pool), prune=prune, keep=keep, rounding=rounding)
        off = [members for members in pool if start is not None and not any(head in start for head in members)]
        gone_before = set(off)
        left = [members for members in pool if members not in gone_before]
        spared = _protected(sites, left, values, at_least)
        ranked = sorted((m for m in left if m not in spared), key=lambda members: worth(members, values))
        gone += [head for members in [*off, *ranked[: max(0, amount - len(off))]] for head in members]
    if refuse_none and not gone:
        why = f" with at_least={at_least}" if at_least else ""
        refuse_nothing(sizes, prune=prune, keep=keep, why=why + ("" if unit == "head" else f" (unit {unit})"))
    return HeadMask.full(heads).without(*gone)


def _wanted(components: str | Iterable[str] | None, heads: HeadMap) -> set[str] | None:
    """The components whose heads may go; None for all."""
    if components is None:
        return None
    names = [components] if isinstance(components, str) else components
    wanted, there = {canonical_component(name) for name in names}, {site.component for site in heads}
    if wanted - there:
        raise MaskError(f"This model has no {min(wanted - there)} heads; its heads are {', '.join(sorted(there))}.")
    return wanted


def units_of(heads: HeadMap, unit: Unit, scores: HeadScores, normalize: Normalize | None) -> list[tuple[HeadId, ...]]:
    """What can go by itself: heads, groups that share keys and values, or one head of each group."""
    values = scores.normalized(normalize)
    return [members for site in heads for members in units_of_site(site, unit, values[site.id])]


def pruning_order(scores: HeadScores, *, normalize: Normalize | None = None) -> tuple[HeadId, ...]:
    """Every head, first to go first: `select(scores, prune=n)` takes the first n."""
    values = scores.normalized(normalize)
    heads = [(head,) for site in plain_map(scores) for head in site.heads()]
    return tuple(head for (head,) in sorted(heads, key=lambda members: worth(members, values)))


def _pools(sites: list[Site], per: Per) -> list[list[Site]]:
    """Sites among whose heads one ranking decides."""
    if per == "site":
        return [[site] for site in sites]
    if per == "model":
        return [sites]
    return [[site for site in sites if site.component == name] for name in dict.fromkeys(s.component for s in sites)]


def units_of_site(site: Site, unit: Unit, values: Row) -> list[tuple[HeadId, ...]]:
    """What can go by itself in one site; where one head of every group goes, the lowest go together."""
    if unit == "head":
        return [(head,) for head in site.heads()]
    if unit in ("group", "query") and site.num_kv_heads == site.num_heads:
        return [(head,) for head in site.heads()]  # without groups, heads stand alone
    if unit == "group":
        return [tuple(HeadId(site.id, index) for index in group) for group in site.groups]
    if unit != "query":
        raise UnknownNameError(f"No unit called '{unit}'. {hint(unit, ('head', 'group', 'query'))}")
    # One head of every group goes at a time: the worst of each first.
    ranked = [sorted(group, key=lambda index: (values[index] or 0.0, index)) for group in site.groups]
    return [tuple(HeadId(site.id, index) for index in sorted(row)) for row in zip(*ranked, strict=True)]


def worth(members: tuple[HeadId, ...], values: Mapping[str, Row]) -> float:
    """The score of a unit: the sum of its heads'."""
    return sum(values[head.site][head.index] or 0.0 for head in members)


def _protected(
    sites: list[Site],
    pool: list[tuple[HeadId, ...]],
    values: dict[str, Row],
    at_least: int,
) -> set[tuple[HeadId, ...]]:
    """The best units of every site, as many as it takes to keep `at_least` heads there."""
    spared: set[tuple[HeadId, ...]] = set()
    for site in sites:
        mine = sorted((m for m in pool if m[0].site == site.id), key=lambda members: worth(members, values))
        kept = 0
        for members in reversed(mine):
            if kept >= at_least:
                break
            spared.add(members)
            kept += len(members)
    return spared


def plain_map(scores: HeadScores) -> HeadMap:
    """Sites as far as scores know them: enough where heads stand alone."""
    sites = []
    for site_id, row in scores.sums.items():
        kept = tuple(index for index, value in enumerate(row) if value is not None)
        name = SiteName.parse(site_id)
        sites.append(
            Site(
                id=site_id,
                component=name.component,
                layer=name.layer,
                layers=(name.layer,),
                tower=name.tower,
                num_heads=len(kept),
                num_kv_heads=len(kept),
                head_dim=0,
                path="",
                output="",
                original_num_heads=len(row),
                kept=kept,
                groups=tuple((index,) for index in kept),
            )
        )
    return HeadMap(tuple(sites))


def check_fit(scores: HeadScores, heads: HeadMap) -> None:
    """Scores must be of these heads, and finite numbers."""
    for site in heads:
        row = scores.sums.get(site.id)
        if row is None or len(row) != site.original_num_heads:
            raise MaskError(
                f"These scores are of another model: they do not have the {site.original_num_heads} heads of {site.id}."
                + (" Score neurons, too: find_heads(model, neurons=True), or --parts." if site.is_neurons else "")
            )
        missing = [index for index in site.kept if row[index] is None]
        if missing:
            raise MaskError(f"{HeadId(site.id, missing[0])} has no score. Score the model that you select heads of.")
        odd = [index for index in site.kept if not math.isfinite(row[index] or 0.0)]
        if odd:
            raise MaskError(f"The score of {HeadId(site.id, odd[0])} is {row[odd[0]]}; expected a finite number.")
