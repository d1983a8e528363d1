"""Which heads stay."""

from __future__ import annotations

import bisect
import math
import operator
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal

from headprune import files
from headprune.errors import MaskError, UnknownNameError
from headprune.heads.headmap import NEURONS, HeadId, HeadMap, Site, SiteName, counts, head_lists
from headprune.heads.show import Picture, frame, head_cells, neuron_sites
from headprune.registry import hint

Unit = Literal["head", "group", "query"]


def heads_to_prune(
    total: int,
    *,
    prune: float | int | None = None,
    keep: float | int | None = None,
    rounding: Literal["floor", "ceil"] = "floor",
) -> int:
    """How many of `total` heads go. A float is a share, an int a count: `1` is one head, `1.0` is all."""
    if (prune is None) == (keep is None):
        raise MaskError("Say how many heads with either prune= or keep=, not both and not neither.")
    amount = prune if prune is not None else keep
    if isinstance(amount, bool) or not isinstance(amount, int | float):
        raise MaskError(f"Found {amount!r}: expected a share (a float from 0.0 to 1.0) or a count (an int).")
    if isinstance(amount, int):
        if not 0 <= amount <= total:
            raise MaskError(f"Found a count of {amount}: there are {total} to choose from.")
        return amount if prune is not None else total - amount
    if not 0.0 <= amount <= 1.0:
        raise MaskError(f"Found a share of {amount}: a share is from 0.0 to 1.0 (a whole number is a count).")
    share = amount if prune is not None else 1.0 - amount
    if rounding not in ("floor", "ceil"):
        raise UnknownNameError(f"No rounding called '{rounding}'. {hint(rounding, ('floor', 'ceil'))}")
    if rounding == "ceil":
        return math.ceil(share * total - 1e-9)
    return math.floor(share * total + 1e-9)


def refuse_nothing(pools: Iterable[int], *, prune: float | int | None, keep: float | int | None, why: str = "") -> None:
    """A share that was to remove something and removed nothing: the nearest shares that are possible are named.

    `pools` are the numbers of units of which the share was taken.
    """
    if isinstance(prune, int) or isinstance(keep, int) or prune == 0.0 or keep == 1.0:
        return
    sizes = sorted({size for size in pools if size})
    asked = f"prune={prune:g}" if prune is not None else f"keep={keep:g}"
    if not sizes:
        raise MaskError(f"{asked} removes nothing: there is nothing to choose from.")
    least = [math.ceil(1000 / size) / 10 for size in sizes]
    possible = " or ".join(
        f"{f'prune={share / 100:g}' if prune is not None else f'keep={1 - share / 100:g}'} (1 of {size}, {share:g} %)"
        for size, share in zip(sizes, least, strict=True)
    )
    raise MaskError(
        f"{asked} removes nothing of {' or '.join(map(str, sizes))}{why}. The nearest that removes something is "
        f"{possible}; prune=0.0 removes nothing."
    )


class HeadMask:
    """The heads that stay, by original index. A value: set algebra, comparison, JSON in and out.

    `&`, `|` and `-` work on the kept heads, `<=` asks whether all kept heads are kept by the other too,
    and `len` counts the kept heads.
    """

    def __init__(self, kept: Mapping[str, Iterable[int]], original: Mapping[str, int]) -> None:
        """Most callers want `full`, `empty`, `from_dict` or `random`. Sites not in `kept` keep no head."""
        self._original = dict(original)
        self._kept: dict[str, tuple[int, ...]] = dict.fromkeys(self._original, ())
        for site, heads in kept.items():
            if site not in self._original:
                raise UnknownNameError(f"This model has no site '{site}'. {hint(site, self._original)}")
            indices = tuple(sorted(set(heads)))
            for index in indices:
                if not 0 <= index < self._original[site]:
                    raise MaskError(
                        f"There is no head '{site}:{index}': {site} was built with {self._original[site]} heads, "
                        f"numbered 0 to {self._original[site] - 1}."
                    )
            self._kept[site] = indices

    @classmethod
    def full(cls, heads: HeadMap) -> HeadMask:
        """Every head that the model has now."""
        return cls({site.id: site.kept for site in heads}, heads.original_counts())

    @classmethod
    def empty(cls, heads: HeadMap) -> HeadMask:
        return cls({}, heads.original_counts())

    @classmethod
    def from_dict(cls, heads: HeadMap, kept: Mapping[str, Iterable[int]]) -> HeadMask:
        """Sites that `kept` does not name keep all their heads; `[]` empties a site."""
        if not isinstance(kept, Mapping):
            raise MaskError(f"Found {type(kept).__name__}; expected sites with heads, as {{'encoder.0': [0, 2]}}.")
        lists = head_lists({site: _as_list(site, indices) for site, indices in kept.items()}, "mask")
        mask = cls({**{site.id: site.kept for site in heads}, **lists}, heads.original_counts())
        return mask.checked_for(heads)

    @classmethod
    def random(
        cls,
        heads: HeadMap,
        *,
        keep: float | int | None = None,
        prune: float | int | None = None,
        seed: int = 0,
        unit: Unit = "head",
    ) -> HeadMask:
        """A uniform choice, the same for the same seed everywhere. A harsher cut contains a milder one.

        With `unit="group"` or `"query"` a count counts units, so that the mask fits grouped-query attention.
        """
        units = head_units(heads, unit)
        order = list(range(len(units)))
        random.Random(seed).shuffle(order)
        gone = {head for index in order[: heads_to_prune(len(units), prune=prune, keep=keep)] for head in units[index]}
        return cls.full(heads).without(*sorted(gone))

    def without(self, *heads: str | HeadId) -> HeadMask:
        """The mask that drops these too: heads (`encoder.3:7`) or whole sites (`encoder.3`)."""
        kept = {site: set(indices) for site, indices in self._kept.items()}
        for name in heads:
            if isinstance(name, str) and name in kept:
                kept[name] = set()
                continue
            if isinstance(name, str) and ":" not in name:
                raise UnknownNameError(f"This model has no site '{name}'. {hint(name, self._original)}")
            head = self._checked(HeadId.parse(name))
            kept[head.site].discard(head.index)
        return HeadMask(kept, self._original)

    def checked_for(self, heads: HeadMap) -> HeadMask:
        """This mask, if it fits that model; an error that says why not, otherwise."""
        if self._original != heads.original_counts():
            mine, theirs = self._original, heads.original_counts()
            missing = sorted(set(mine) ^ set(theirs))
            shared = [site for site in mine if site in theirs]
            differing = [f"{site} ({mine[site]} and {theirs[site]})" for site in shared if mine[site] != theirs[site]]
            found = f"sites {', '.join(missing[:4])}" if missing else f"head counts of {', '.join(differing[:4])}"
            raise MaskError(
                f"This mask is for another model: they differ in the {found}. "
                "Make the mask from find_heads() of the model that you use it on."
            )
        for site in heads:
            removed = set(self._kept[site.id]) - set(site.kept)
            if removed:
                raise MaskError(
                    f"This mask keeps {HeadId(site.id, min(removed))}, which was removed from the model before; "
                    f"{site.id} still has {list(site.kept)}. Start from HeadMask.full(find_heads(model))."
                )
        return self

    def filled(self, heads: HeadMap) -> HeadMask:
        """On a map of heads and neurons, a mask that speaks of one of these kinds keeps all of the other."""
        attention, neurons = heads.attention.original_counts(), heads.neurons.original_counts()
        if attention and neurons and self._original in (attention, neurons):
            return HeadMask({**{site.id: site.kept for site in heads}, **self._kept}, heads.original_counts())
        return self

    @property
    def has_neurons(self) -> bool:
        """Whether it speaks of feed-forward parts, too."""
        return any(SiteName.parse(site).component == NEURONS for site in self._original)

    @property
    def empties(self) -> bool:
        """Whether a site keeps nothing."""
        return not all(self._kept.values())

    @property
    def original_counts(self) -> dict[str, int]:
        return dict(self._original)

    def kept(self, site: str) -> tuple[int, ...]:
        """The kept heads of one site."""
        if site not in self._kept:
            raise UnknownNameError(f"This model has no site '{site}'. {hint(site, self._original)}")
        return self._kept[site]

    def heads(self) -> list[HeadId]:
        return [HeadId(site, index) for site, indices in self._kept.items() for index in indices]

    def __iter__(self) -> Iterator[HeadId]:
        return iter(self.heads())

    def __contains__(self, head: str | HeadId) -> bool:
        parsed = self._checked(HeadId.parse(head))
        row = self._kept[parsed.site]  # sorted, and thousands long for neurons
        place = bisect.bisect_left(row, parsed.index)
        return place < len(row) and row[place] == parsed.index

    def __len__(self) -> int:
        return sum(map(len, self._kept.values()))

    def __bool__(self) -> bool:
        return True  # a mask that keeps nothing is still a mask

    def __and__(self, other: HeadMask) -> HeadMask:
        return self._combine(other, lambda mine, theirs: mine & theirs)

    def __or__(self, other: HeadMask) -> HeadMask:
        return self._combine(other, lambda mine, theirs: mine | theirs)

    def __sub__(self, other: HeadMask) -> HeadMask:
        return self._combine(other, lambda mine, theirs: mine - theirs)

    def __le__(self, other: HeadMask) -> bool:
        return (self - other)._is_nothing()

    def __lt__(self, other: HeadMask) -> bool:
        return self <= other and self != other

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, HeadMask):
            return NotImplemented
        return self._kept == other._kept and self._original == other._original

    def __hash__(self) -> int:
        return hash((frozenset(self._kept.items()), frozenset(self._original.items())))

    def __repr__(self) -> str:
        return f"HeadMask(keeps {len(self)} of {sum(self._original.values())} heads)"

    def plot(self) -> Picture:
        """A map: a row a site, a cell a head, dashed where it goes. A notebook shows it; `.save(path)`."""
        rows = {site: [1.0] * count for site, count in self._original.items()}
        return head_cells(rows, self._kept, title=repr(self), neurons=neuron_sites(self._original))

    def _repr_html_(self) -> str:
        return self.plot().svg

    def to_frame(self) -> Any:
        """A frame of pandas: a row a head, and whether it stays."""
        return frame([
            {"site": site, "head": head, "kept": head in set(self._kept[site])}
            for site, count in self._original.items() for head in range(count)
        ])  # fmt: skip

    def to_dict(self) -> dict[str, list[int]]:
        """`{site id: [kept original heads]}`, every site named."""
        return {site: list(indices) for site, indices in self._kept.items()}

    def to_json(self) -> str:
        return files.dump("mask", {"original": self._original, "kept": self.to_dict()})

    @classmethod
    def from_json(cls, text: str, heads: HeadMap | None = None) -> HeadMask:
        """Read a mask; with `heads`, also check that it is for that model."""
        content = files.load("mask", text)
        original = counts(content.get("original"), "mask file, 'original'")
        kept = head_lists(content.get("kept"), "mask file, 'kept'")
        if set(kept) != set(original):
            odd = ", ".join(sorted(set(kept) ^ set(original)))
            raise MaskError(f"The mask file names different sites under 'kept' and 'original': {odd}.")
        mask = cls(kept, original)
        return mask.checked_for(heads) if heads is not None else mask

    def _checked(self, head: HeadId) -> HeadId:
        if head.site not in self._original:
            raise UnknownNameError(f"This model has no site '{head.site}'. {hint(head.site, self._original)}")
        if not 0 <= head.index < self._original[head.site]:
            last = self._original[head.site] - 1
            raise UnknownNameError(f"There is no head '{head}': the heads of {head.site} are numbered 0 to {last}.")
        return head

    def _combine(self, other: HeadMask, operation: Callable[[set[int], set[int]], set[int]]) -> HeadMask:
        if not isinstance(other, HeadMask):
            raise MaskError(f"Found {type(other).__name__}, expected another HeadMask.")
        if self._original != other._original:
            raise MaskError("These masks are for different models: their sites or original head counts differ.")
        return HeadMask(
            {site: operation(set(mine), set(other._kept[site])) for site, mine in self._kept.items()}, self._original
        )

    def _is_nothing(self) -> bool:
        return not any(self._kept.values())


def head_units(heads: HeadMap, unit: Unit) -> list[tuple[HeadId, ...]]:
    """The sets of heads that may be removed together under grouped-query attention.

    `group`: a KV head with all its query heads. `query`: one query head of every group of a site.
    """
    if unit == "head":
        return [(head,) for head in heads.heads()]
    if unit not in ("group", "query"):
        raise UnknownNameError(f"No unit called '{unit}'. {hint(unit, ('head', 'group', 'query'))}")
    return [tuple(HeadId(site.id, index) for index in members) for site in heads for members in _site_units(site, unit)]


def _site_units(site: Site, unit: Unit) -> Iterable[tuple[int, ...]]:
    if unit == "group" or site.num_kv_heads == site.num_heads:  # without groups, heads stand alone
        return site.groups
    return zip(*site.groups, strict=True)


def _as_list(site: str, indices: object) -> list[int]:
    """Whole numbers of any library, and nothing else."""
    try:
        if isinstance(indices, str | bytes):
            raise TypeError("found text")
        items = list(indices)  # type: ignore[call-overload]
        if any("bool" in str(getattr(item, "dtype", type(item))) for item in items):  # of any library
            raise TypeError("found truth values")
        return [operator.index(item) for item in items]
    except TypeError as error:
        raise MaskError(f"{site}: found {indices!r}, expected a list of head indices, like [0, 2].") from error
