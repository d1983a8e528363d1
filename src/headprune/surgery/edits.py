"""A pruning as data: what may leave a site together, and the changes that make the pruned skeleton of the original."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from headprune.errors import CheckpointError, MaskError
from headprune.heads import Site
from headprune.hooks import FORMS, SlicedArgument, Width


@dataclass(frozen=True)
class Slice:
    """Entries of one dimension of a tensor, by their place in the original."""

    dim: int
    size: int  # of the original
    keep: tuple[int, ...]
    is_placeholder: bool = False  # of a site without heads: the shape is needed, the numbers are not


@dataclass(frozen=True)
class Stub:
    """A linear map replaced by one without weights."""

    kind: str  # "zeros" or "bias"
    width: int
    bias: bool = False


@dataclass(frozen=True)
class Attention:
    """What the attention function of a block must know."""

    empty: bool = False
    bias_heads: tuple[int, ...] | None = None
    unfused: str = ""  # how a block is run that does not look up its attention function: its adapter's word


@dataclass(frozen=True)
class Edits:
    """All changes, by the path of the module they touch."""

    multihead: set[str] = field(default_factory=set)
    slices: dict[str, dict[str, Slice]] = field(default_factory=dict)
    attributes: dict[str, dict[str, int]] = field(default_factory=dict)
    stubs: dict[str, Stub] = field(default_factory=dict)
    configs: dict[str, dict[str, int]] = field(default_factory=dict)
    attention: dict[str, Attention] = field(default_factory=dict)
    arguments: dict[str, tuple[SlicedArgument, ...]] = field(default_factory=dict)
    reshapes: dict[str, Width] = field(default_factory=dict)
    biases: dict[str, int] = field(default_factory=dict)  # that a repair gave to projections which had none
    frozen: dict[str, tuple[str, ...]] = field(default_factory=dict)  # parameters on which nothing depends any more

    def then(self, later: Edits) -> Edits:
        """One set of edits that does what both do one after the other."""
        slices = {path: dict(tensors) for path, tensors in self.slices.items()}
        for path, tensors in later.slices.items():
            for name, new in tensors.items():
                old = slices.setdefault(path, {}).get(name)
                slices[path][name] = (
                    new
                    if old is None
                    else Slice(old.dim, old.size, tuple(old.keep[i] for i in new.keep), new.is_placeholder)
                )
        for path in later.stubs:
            slices.pop(path, None)
        return Edits(
            multihead=self.multihead | later.multihead,
            slices=slices,
            attributes=_merged(self.attributes, later.attributes, without=later.stubs),
            stubs={**self.stubs, **later.stubs},
            configs=_merged(self.configs, later.configs),
            attention={**self.attention, **later.attention},
            arguments={**self.arguments, **later.arguments},
            reshapes={**self.reshapes, **later.reshapes},
            biases={**self.biases, **later.biases},
            frozen={
                path: (*self.frozen.get(path, ()), *later.frozen.get(path, ())) for path in self.frozen | later.frozen
            },
        )

    def renamed(self, rename: Callable[[str], str]) -> Edits:
        """The same edits under other paths."""
        return Edits(
            multihead={rename(path) for path in self.multihead},
            **{name: {rename(path): v for path, v in getattr(self, name).items()} for name in _TABLES},
        )

    def paths(self) -> set[str]:
        return set(self.multihead).union(*(getattr(self, name) for name in _TABLES))

    def to_dict(self) -> dict[str, object]:
        """Plain JSON values."""
        return {
            "multihead": sorted(self.multihead),
            "slices": {
                path: {name: _slice_entry(cut) for name, cut in tensors.items()}
                for path, tensors in self.slices.items()
            },
            "attributes": {path: dict(values) for path, values in self.attributes.items()},
            "stubs": {path: {"kind": s.kind, "width": s.width, "bias": s.bias} for path, s in self.stubs.items()},
            "configs": {path: dict(values) for path, values in self.configs.items()},
            "attention": {
                path: {
                    "empty": a.empty,
                    "bias_heads": None if a.bias_heads is None else list(a.bias_heads),
                    **({"unfused": a.unfused} if a.unfused else {}),
                }
                for path, a in self.attention.items()
            },
            "arguments": {
                path: [
                    {"name": a.name, "position": a.position, "dim": a.dim, "heads": a.heads, "kept": list(a.kept)}
                    for a in arguments
                ]
                for path, arguments in self.arguments.items()
            },
            "reshapes": {
                path: {"whole": w.whole, "heads": w.heads, "head_dim": w.head_dim} for path, w in self.reshapes.items()
            },
            "biases": dict(self.biases),
            **({"frozen": {path: list(names) for path, names in self.frozen.items()}} if self.frozen else {}),
        }

    @classmethod
    def from_dict(cls, content: Any, most: int | None = None) -> Edits:
        """Read what `to_dict` wrote, from a file that anybody may have touched; with at most so many kept entries."""
        try:
            if most is not None:
                _check_sizes(content["slices"], most)
            edits = cls(
                multihead={_text(path) for path in content["multihead"]},
                slices={
                    _text(path): {_text(name): _read_slice(value) for name, value in tensors.items()}
                    for path, tensors in content["slices"].items()
                },
                attributes={
                    _text(p): {_name(k): _whole(v) for k, v in d.items()} for p, d in content["attributes"].items()
                },
                stubs={_text(path): _read_stub(value) for path, value in content["stubs"].items()},
                configs={_text(p): {_name(k): _whole(v) for k, v in d.items()} for p, d in content["configs"].items()},
                attention={_text(path): _read_attention(value) for path, value in content["attention"].items()},
                arguments={
                    _text(path): tuple(_read_argument(value) for value in values)
                    for path, values in content["arguments"].items()
                },
                reshapes={_text(path): _read_width(value) for path, value in content.get("reshapes", {}).items()},
                biases={_text(path): _whole(value) for path, value in content.get("biases", {}).items()},
                frozen={_text(p): tuple(_name(n) for n in names) for p, names in content.get("frozen", {}).items()},
            )
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
            raise CheckpointError(
                f"The config's 'headprune' entry cannot be read ({type(error).__name__}: {error}). "
                "It was edited or damaged: save the pruned model again."
            ) from error
        return edits


LARGEST = 1 << 20  # entries of one dimension that is cut: more than any model has


_TABLES = ("slices", "attributes", "stubs", "configs", "attention", "arguments", "reshapes", "biases", "frozen")


def _merged(
    first: dict[str, dict[str, int]], second: dict[str, dict[str, int]], without: Collection[str] = ()
) -> dict[str, dict[str, int]]:
    paths = [path for path in {**first, **second} if path not in without]
    return {path: {**first.get(path, {}), **second.get(path, {})} for path in paths}


def to_ranges(indices: Sequence[int]) -> list[list[int]]:
    """[[0, 64], [128, 192]] for 0..63 and 128..191."""
    ranges: list[list[int]] = []
    for index in indices:
        if ranges and ranges[-1][1] == index:
            ranges[-1][1] = index + 1
        else:
            ranges.append([index, index + 1])
    return ranges


def _slice_entry(cut: Slice) -> dict[str, object]:
    entry: dict[str, object] = {"dim": cut.dim, "size": cut.size, "keep": to_ranges(cut.keep)}
    return {**entry, "placeholder": True} if cut.is_placeholder else entry


def _check_sizes(slices: Any, most: int) -> None:
    """Ranges are short in the file and long in memory: they are counted before they are written out."""
    ranges = [pair for tensors in slices.values() for cut in tensors.values() for pair in cut["keep"]]
    total = sum(max(0, stop - start) for start, stop in ranges)
    if not total <= most:
        raise ValueError(f"{total} entries are kept: more than any model has")


def _read_slice(value: Any) -> Slice:
    dim, size = _whole(value["dim"]), _whole(value["size"])
    if size > LARGEST:
        raise ValueError(f"{size} entries in one dimension")
    keep: list[int] = []
    for start, stop in value["keep"]:
        if not 0 <= _whole(start) < _whole(stop) <= size:
            raise ValueError(f"range {start}:{stop} of {size}")
        keep.extend(range(start, stop))
        if len(keep) > LARGEST:
            raise ValueError("more entries than any model has")
    is_placeholder = value.get("placeholder", False)
    if type(is_placeholder) is not bool:
        raise ValueError(f"placeholder is {is_placeholder!r}")
    return Slice(dim, size, tuple(keep), is_placeholder)


def _read_stub(value: Any) -> Stub:
    if value["kind"] not in ("zeros", "bias") or type(value["bias"]) is not bool:
        raise ValueError(f"stub {value!r}")
    return Stub(value["kind"], _whole(value["width"]), value["bias"])


def _read_attention(value: Any) -> Attention:
    heads, unfused = value["bias_heads"], value.get("unfused", "")
    if type(value["empty"]) is not bool or unfused not in ("", *FORMS):
        raise ValueError(f"attention {value!r}")
    return Attention(value["empty"], None if heads is None else tuple(_whole(h) for h in heads), unfused)


def _read_argument(value: Any) -> SlicedArgument:
    position = value["position"]
    if type(position) is not int or position < -1:
        raise ValueError(f"position {position!r}")
    kept = tuple(_whole(head) for head in value["kept"])
    heads = _whole(value["heads"])
    if any(head >= heads for head in kept):
        raise ValueError(f"heads {kept} of {heads}")
    return SlicedArgument(_text(value["name"]), position, _whole(value["dim"]), heads, kept)


def _read_width(value: Any) -> Width:
    width = Width(_whole(value["whole"]), _whole(value["heads"]), _whole(value["head_dim"]))
    if not 0 < width.heads * width.head_dim <= width.whole:
        raise ValueError(f"{width.heads} heads of {width.head_dim} in {width.whole}")
    return width


def _whole(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"found {value!r}, expected a whole number")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"found {value!r}, expected text")
    return value


def _name(value: object) -> str:
    """A plain public attribute name: nothing that could reach into Python's own machinery."""
    name = _text(value)
    if not name.isidentifier() or name.startswith("_"):
        raise ValueError(f"found {name!r}, expected the name of a count")
    return name


Gqa = Literal["group", "query", "expand"]


@dataclass(frozen=True)
class Cut:
    """What stays of one site, in original indices."""

    site: Site
    kept: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]  # of the pruned site
    expand: bool = False

    @property
    def removed(self) -> tuple[int, ...]:
        kept = set(self.kept)
        return tuple(head for head in self.site.kept if head not in kept)

    @property
    def is_empty(self) -> bool:
        return not self.kept

    @property
    def is_again(self) -> bool:
        """Whether heads of the site went before."""
        return self.site.num_heads != self.site.original_num_heads

    @property
    def positions(self) -> list[int]:
        """Kept heads by their present place in the site; an emptied site keeps its first as a placeholder."""
        places = {head: place for place, head in enumerate(self.site.kept)}
        return [places[head] for head in self.kept] or [0]

    @property
    def num_kv_heads(self) -> int:
        return len(self.groups) or 1


def cut_site(site: Site, kept: Sequence[int], gqa: Gqa | None) -> Cut:
    """Check that these heads can be all that is left; never changes the choice."""
    keep = tuple(kept)
    grouped = site.num_kv_heads < site.num_heads
    if not grouped or not keep:
        return Cut(site, keep, tuple((head,) for head in keep))
    left = [tuple(head for head in group if head in keep) for group in site.groups]
    if gqa == "expand":
        return Cut(site, keep, tuple((head,) for head in keep), expand=True)
    whole = all(len(part) in (0, len(group)) for part, group in zip(left, site.groups, strict=True))
    even = len({len(part) for part in left}) == 1
    level = len({len(part) for part in left if part}) == 1
    fits = {"group": whole, "query": even, None: level}[gqa]
    if not fits:
        raise MaskError(_misfit(site, left, gqa))
    return Cut(site, keep, tuple(part for part in left if part))


def _misfit(site: Site, left: list[tuple[int, ...]], gqa: Gqa | None) -> str:
    sizes = [len(part) for part in left]
    counts = ", ".join(map(str, sizes[:-1])) + f" and {sizes[-1]}" if len(sizes) > 1 else str(sizes[0])
    whole = [h for part, group in zip(left, site.groups, strict=True) if 2 * len(part) >= len(group) for h in group]
    each = max(1, round(sum(sizes) / len(sizes)))
    even = [h for part, group in zip(left, site.groups, strict=True) for h in _nearest(part, group, each)]
    asked = f" gqa='{gqa}' was asked for." if gqa else ""
    return (
        f"{site.id} uses grouped-query attention ({site.num_heads} heads, {site.num_kv_heads} groups) and this mask "
        f"keeps {counts} heads of its groups.{asked} Nearest masks that fit: whole groups {_all(whole, site)}, or the "
        f'same number from each {_all(even, site)}. Remove whole groups (select(..., unit="group"), --unit group), the '
        'same number from each (unit="query", --unit query), or pass gqa="expand" (--gqa expand).'
    )


def _all(kept: list[int], site: Site) -> str:
    return f"{sorted(kept)}{' (all of them: nothing goes)' if len(kept) == site.num_heads else ''}"


def _nearest(part: tuple[int, ...], group: tuple[int, ...], size: int) -> list[int]:
    return sorted(sorted(group, key=lambda head: (head not in part, head))[:size])
