"""Where the heads of a model are."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from headprune import files, limits
from headprune.errors import FileFormatError, UnknownNameError
from headprune.heads.show import Picture, frame, head_cells, neuron_sites
from headprune.registry import hint


@dataclass(frozen=True, kw_only=True)
class Site:
    """One multi-head attention block.

    `num_heads` counts the heads that are there now; `kept` and `groups` name them by their original indices.
    """

    id: str
    component: str
    layer: int
    num_heads: int
    num_kv_heads: int
    head_dim: int  # width of one head's slice of the output projection's input
    path: str  # the block's module
    output: str  # its output projection's module
    original_num_heads: int
    kept: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]  # heads that share keys and values; single heads unless GQA or MQA
    layers: tuple[int, ...]  # every layer that runs this module: several if it is shared (ALBERT)
    tower: str | None = None
    batch_axis: int = 0  # which dimension of the output projection's input is the batch: 1 where positions come first

    @property
    def is_neurons(self) -> bool:
        """Whether this is a feed-forward part: its heads are neurons, one channel wide."""
        return self.component == NEURONS

    @property
    def side(self) -> str:
        """Whose positions it sees: `encoder`, `decoder` or `cross`; neurons say it by where they are."""
        if not self.is_neurons:
            return self.component
        return "decoder" if (self.tower or "").rpartition(".")[2] == "decoder" else "encoder"

    def heads(self) -> list[HeadId]:
        return [HeadId(self.id, index) for index in self.kept]

    def to_dict(self) -> dict[str, Any]:
        content = dataclasses.asdict(self)
        return {**content, "groups": ()} if self.is_neurons else content  # thousands, each by itself

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Site:
        """Read what `to_dict` wrote; the file may come from anywhere."""
        if not isinstance(content, Mapping):
            raise FileFormatError(f"A site is a table of its properties; found {type(content).__name__}.")
        names = {field.name for field in dataclasses.fields(cls)}
        content = {"batch_axis": 0, **content}  # younger than the first files
        if set(content) != names:
            odd = sorted(set(content) ^ names)
            raise FileFormatError(f"A site has unexpected or missing properties: {', '.join(map(str, odd))}.")
        values = dict(content)
        for name in ("layer", "num_heads", "num_kv_heads", "head_dim", "original_num_heads", "batch_axis"):
            if type(values[name]) is not int or values[name] < 0:
                raise FileFormatError(f"Site {values['id']!r}: {name} is {values[name]!r}, expected a whole number.")
        for name in ("id", "component", "path", "output"):
            if not isinstance(values[name], str):
                raise FileFormatError(f"A site's {name} is {values[name]!r}, expected text.")
        if values["tower"] is not None and not isinstance(values["tower"], str):
            raise FileFormatError(f"Site {values['id']!r}: tower is {values['tower']!r}, expected text or null.")
        if values["component"] not in COMPONENTS:
            raise FileFormatError(
                f"Site {values['id']!r}: component is {values['component']!r}, expected one of {COMPONENTS}."
            )
        _check_name(values)
        most = limits.NEURONS if values["component"] == NEURONS else limits.HEADS
        heads, channels = values["original_num_heads"], values["original_num_heads"] * max(1, values["head_dim"])
        if heads > most or channels > limits.NEURONS:
            raise FileFormatError(
                f"Site {values['id']!r}: {heads} heads of {values['head_dim']} channels; expected at most {most} heads "
                f"and {limits.NEURONS} channels."
            )
        for name, size in (("kept", heads), ("groups", heads), ("layers", limits.LAYERS)):
            if isinstance(values[name], list | tuple) and len(values[name]) > size:
                raise FileFormatError(f"Site {values['id']!r}: {name} has {len(values[name])} entries, at most {size}.")
        lists = head_lists({"kept": values["kept"], "layers": values["layers"]}, f"site {values['id']}")
        alone = values["component"] == NEURONS and values["groups"] in ([], ())
        if not isinstance(values["groups"], list | tuple):
            raise FileFormatError(f"Site {values['id']!r}: groups is {values['groups']!r}, expected lists of heads.")
        groups = head_lists({str(i): g for i, g in enumerate(values["groups"])}, f"groups of {values['id']}")
        values |= {
            "kept": tuple(lists["kept"]),
            "layers": tuple(lists["layers"]),
            "groups": tuple((neuron,) for neuron in lists["kept"]) if alone else tuple(map(tuple, groups.values())),
        }
        site = cls(**values)
        if len(set(site.kept)) != site.num_heads or any(head >= site.original_num_heads for head in site.kept):
            raise FileFormatError(
                f"Site '{site.id}' keeps {list(site.kept)}: expected {site.num_heads} different heads "
                f"below {site.original_num_heads}."
            )
        if not alone and sorted(head for group in site.groups for head in group) != sorted(site.kept):
            raise FileFormatError(f"Site '{site.id}': its groups {site.groups} do not hold exactly its heads.")
        return site


def _check_name(values: Mapping[str, Any]) -> None:
    """The id says what the rest says, and no text of a site does more than stand there (codes of a terminal, signs that
    turn the direction of writing)."""
    tower = f"{values['tower']}." if values["tower"] else ""
    expected = f"{tower}{values['component']}.{values['layer']}"
    first, mark, number = values["id"].partition("#")
    if first != expected or (mark and not (number.isascii() and number.isdecimal())):
        raise FileFormatError(
            f"A site has the id {values['id'][:80]!r}; by its tower, component and layer, expected {expected[:80]!r}."
        )
    for name in ("id", "path", "output"):
        if not values[name].isprintable():
            raise FileFormatError(f"A site's {name} is {values[name][:80]!r}; expected a name.")


@dataclass(frozen=True)
class Skipped:
    """Something that looks like attention and that headprune leaves alone, with the reason."""

    path: str
    reason: str
    has_heads: bool = True  # no for what mixes positions in another way: linear attention, state-space layers


class HeadMap:
    """All sites of a model, in order: tower, then encoder, decoder, cross; then layer.

    Iterating gives the sites; `len` is the number of heads; `heads["encoder.3"]` is a site; `str` is a table.
    """

    def __init__(
        self, sites: tuple[Site, ...] = (), *, skipped: tuple[Skipped, ...] = (), model_type: str = ""
    ) -> None:
        towers = {tower: place for place, tower in enumerate(dict.fromkeys(site.tower for site in sites))}
        self._sites = tuple(
            sorted(sites, key=lambda s: (towers[s.tower], COMPONENTS.index(s.component), s.layer, s.id))
        )
        self._by_id = {site.id: site for site in self._sites}
        self.skipped = skipped
        self.model_type = model_type

    @property
    def sites(self) -> tuple[Site, ...]:
        return self._sites

    @property
    def components(self) -> tuple[str, ...]:
        """The components this model has, in order."""
        return tuple(c for c in COMPONENTS if any(site.component == c for site in self._sites))

    @property
    def attention(self) -> HeadMap:
        """Without neurons."""
        return self._part([site for site in self._sites if not site.is_neurons])

    @property
    def neurons(self) -> HeadMap:
        """Only the feed-forward parts, of a map that has them."""
        return self._part([site for site in self._sites if site.is_neurons])

    def _part(self, sites: list[Site]) -> HeadMap:
        if len(sites) == len(self._sites):
            return self
        return HeadMap(tuple(sites), skipped=self.skipped, model_type=self.model_type)

    def heads(self) -> list[HeadId]:
        """Every head that is there now, in order."""
        return [head for site in self._sites for head in site.heads()]

    def kept(self) -> dict[str, list[int]]:
        """`{site id: [heads that are left]}`, by their original numbers."""
        return {site.id: list(site.kept) for site in self._sites}

    def original_counts(self) -> dict[str, int]:
        return {site.id: site.original_num_heads for site in self._sites}

    def __iter__(self) -> Iterator[Site]:
        return iter(self._sites)

    def __len__(self) -> int:
        return sum(site.num_heads for site in self._sites)

    def __bool__(self) -> bool:
        return bool(self._sites)

    def __contains__(self, site_id: object) -> bool:
        return site_id in self._by_id

    def __getitem__(self, site_id: str) -> Site:
        try:
            return self._by_id[site_id]
        except KeyError:
            raise UnknownNameError(f"This model has no site '{site_id}'. {hint(site_id, self._by_id)}") from None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, HeadMap):
            return NotImplemented
        return (self._sites, self.skipped, self.model_type) == (other._sites, other.skipped, other.model_type)

    def __hash__(self) -> int:
        return hash((self._sites, self.skipped, self.model_type))

    def __repr__(self) -> str:
        return f"HeadMap({len(self._sites)} sites, {len(self)} heads)"

    def plot(self) -> Picture:
        """A map: a row a site, a cell a head, dashed where one was removed. A notebook shows it; `.save(path)`."""
        rows = {site.id: [1.0] * site.original_num_heads for site in self}
        return head_cells(rows, self.kept(), title=repr(self), neurons=neuron_sites(rows))

    def _repr_html_(self) -> str:
        return self.plot().svg

    def to_frame(self) -> Any:
        """A frame of pandas: a row a site."""
        names = ("id", "component", "layer", "num_heads", "original_num_heads", "num_kv_heads", "head_dim", "path")
        return frame([{name: getattr(site, name) for name in names} for site in self])

    def __str__(self) -> str:
        rows = [("site", "heads", "kv", "width", "kept", "module")]
        for site in self._sites:
            kept = "all" if site.num_heads == site.original_num_heads else _ranges(site.kept) or "none"
            rows.append((site.id, str(site.num_heads), str(site.num_kv_heads), str(site.head_dim), kept, site.path))
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        for part, what in ((self.attention, "heads"), (self.neurons, "neurons")):
            if part or what == "heads":
                lines.append(f"{len(part)} {what} in {len(part.sites)} sites")
        lines += [f"skipped {item.path}: {item.reason}" for item in self.skipped]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        return {
            "model_type": self.model_type,
            "sites": [site.to_dict() for site in self._sites],
            "skipped": [dataclasses.asdict(item) for item in self.skipped],
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, object]) -> HeadMap:
        if not isinstance(content, Mapping):
            raise FileFormatError(f"A head map is a table; found {type(content).__name__}.")
        sites, skipped = content.get("sites"), content.get("skipped", [])
        if not isinstance(sites, list) or not isinstance(skipped, list):
            raise FileFormatError(
                "A head map has a list of sites and a list of skipped blocks; one of them is missing."
            )
        try:
            left_alone = tuple(
                Skipped(
                    files.printable(item["path"]), files.printable(item["reason"]), bool(item.get("has_heads", True))
                )
                for item in skipped
            )
        except (TypeError, KeyError) as error:
            raise FileFormatError("A skipped block of a head map has a path and a reason.") from error
        check_heads((site.get("original_num_heads") for site in sites if isinstance(site, Mapping)), len(sites))
        read = tuple(Site.from_dict(site) for site in sites)
        for name, values in (("id", [s.id for s in read]), ("output projection", [s.output for s in read])):
            if len(set(values)) < len(values):
                twice = next(value for value, count in Counter(values).items() if count > 1)
                raise FileFormatError(f"Two sites of a head map have the {name} '{twice[:80]}'; expected one.")
        return cls(read, skipped=left_alone, model_type=files.printable(content.get("model_type", "")))

    def to_json(self) -> str:
        return files.dump("heads", self.to_dict())

    @classmethod
    def from_json(cls, text: str) -> HeadMap:
        return cls.from_dict(files.load("heads", text))


def _ranges(indices: tuple[int, ...]) -> str:
    """`0-3,7` for (0, 1, 2, 3, 7)."""
    parts: list[list[int]] = []
    for index in indices:
        if parts and parts[-1][-1] == index - 1:
            parts[-1] = [parts[-1][0], index]
        else:
            parts.append([index])
    return ",".join("-".join(map(str, part)) for part in parts)


NEURONS = "neurons"  # the component of feed-forward parts, whose "heads" are single neurons
COMPONENTS = ("encoder", "decoder", "cross", NEURONS)
DIGITS = 9  # of an index or a layer: more have no meaning, and thousands are no number to Python

# Budhraja et al. write ES, DS and ED; Michel et al.'s code writes E, D and A.
PAPER_NAMES = {"ES": "encoder", "E": "encoder", "DS": "decoder", "D": "decoder", "ED": "cross", "A": "cross"}


def canonical_component(name: str) -> str:
    """`encoder`, `decoder`, `cross` (from any of the papers' names for them) or `neurons`."""
    if name in COMPONENTS:
        return name
    try:
        return PAPER_NAMES[name.upper()]
    except KeyError:
        known = [*COMPONENTS, *PAPER_NAMES]
        raise UnknownNameError(f"No component called '{name}'. {hint(name, known)}") from None


@dataclass(frozen=True, order=True)
class HeadId:
    """One head: the id of its site and its index in the *original* model."""

    site: str
    index: int

    @classmethod
    def parse(cls, text: str | HeadId) -> HeadId:
        """Read `encoder.3:7`."""
        if isinstance(text, HeadId):
            return text
        if not isinstance(text, str):
            raise UnknownNameError(f"{text!r} is not the name of a head. Expected text like 'encoder.3:7'.")
        site, colon, index = text.rpartition(":")
        if not colon or not site or not index.isdecimal() or len(index) > DIGITS:
            raise UnknownNameError(
                f"'{text}' is not the name of a head. Expected a site and an index counted from 0, like 'encoder.3:7'."
            )
        return cls(site, int(index))

    def __str__(self) -> str:
        return f"{self.site}:{self.index}"


@dataclass(frozen=True)
class SiteName:
    """What the id of a site says: `vision.encoder.3#2` is the second one of layer 3 of the vision tower's encoder."""

    tower: str | None
    component: str
    layer: int

    @classmethod
    def parse(cls, site: str) -> SiteName:
        before, _, layer = site.partition("#")[0].rpartition(".")
        tower, _, component = before.rpartition(".")
        if not component or not (layer.isascii() and layer.isdecimal()) or len(layer) > DIGITS:
            raise UnknownNameError(f"'{site}' is not the name of a site. Expected one like 'encoder.3'.")
        return cls(tower or None, component, int(layer))


def head_lists(value: object, what: str) -> dict[str, list[int]]:
    """A checked `{site id: [whole numbers]}`."""
    if not isinstance(value, Mapping):
        raise FileFormatError(f"{what}: found {type(value).__name__}, expected a table of site id to list of heads.")
    lists: dict[str, list[int]] = {}
    for site, heads in value.items():
        if not isinstance(heads, list | tuple) or not all(type(h) is int and h >= 0 for h in heads):
            raise FileFormatError(
                f"{what}: '{site}' has {str(heads)[:80]}, expected a list of head indices counted from 0."
            )
        lists[str(site)] = list(heads)
    return lists


def check_heads(numbers: Iterable[object], sites: int, what: str = "A head map") -> None:
    """Before any loop over heads: no more sites, and heads in all, than a model has."""
    total = sum(number for number in numbers if type(number) is int) if sites <= limits.SITES else 0
    if sites > limits.SITES or total > limits.ALL_HEADS:
        raise FileFormatError(
            f"{what}: {sites} sites{f' with {total} heads' if total else ''}; expected at most {limits.SITES} with "
            f"{limits.ALL_HEADS}."
        )


def counts(value: object, what: str) -> dict[str, int]:
    """A checked `{site id: number of heads}`."""
    if isinstance(value, Mapping):
        check_heads(value.values(), len(value), what)
    if not isinstance(value, Mapping) or not all(type(n) is int and n >= 0 for n in value.values()):
        raise FileFormatError(f"{what}: expected a table of site id to number of heads, found {str(value)[:80]}.")
    return {str(site): n for site, n in value.items()}
