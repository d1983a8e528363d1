"""Names of heads and components."""

from __future__ import annotations

from dataclasses import dataclass

from headprune.errors import UnknownNameError
from headprune.registry import hint

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
        if not component or not layer.isdecimal() or len(layer) > DIGITS:
            raise UnknownNameError(f"'{site}' is not the name of a site. Expected one like 'encoder.3'.")
        return cls(tower or None, component, int(layer))
