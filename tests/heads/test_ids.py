"""Names of heads and sites, as people write them."""

from __future__ import annotations

import pytest

from headprune.errors import HeadpruneError, UnknownNameError
from headprune.heads import HeadId, canonical_component
from headprune.heads.headmap import SiteName


def test_a_head_is_written_and_read_as_site_colon_index():
    """`encoder.3:7` is a head, also in a second site of a layer and in a tower."""
    for text in ("encoder.3:7", "vision.encoder.0:11", "decoder.2#2:0"):
        assert str(HeadId.parse(text)) == text
    assert HeadId.parse("encoder.3:7") == HeadId("encoder.3", 7)


@pytest.mark.parametrize("text", ["encoder.3", "encoder.3:", ":7", "encoder.3:-1", "encoder.3:x", ""])
def test_what_is_not_a_head_is_refused(text):
    """A wrong name gets an example of a right one."""
    with pytest.raises(UnknownNameError, match=r"encoder\.3:7"):
        HeadId.parse(text)


def test_the_papers_names_of_components_are_accepted():
    """ES / DS / ED (Budhraja) and E / D / A (Michel) mean encoder, decoder, cross."""
    names = {"ES": "encoder", "E": "encoder", "DS": "decoder", "D": "decoder", "ED": "cross", "A": "cross"}
    assert {name: canonical_component(name) for name in names} == names
    assert canonical_component("cross") == "cross"
    with pytest.raises(UnknownNameError, match="Did you mean 'decoder'"):
        canonical_component("decodr")


@pytest.mark.parametrize(
    ("site", "name"),
    [
        ("encoder.3", (None, "encoder", 3)),
        ("vision.encoder.12", ("vision", "encoder", 12)),
        ("encoder.0#2", (None, "encoder", 0)),
    ],
)
def test_the_id_of_a_site_is_read(site, name):
    """Tower, component and layer."""
    found = SiteName.parse(site)
    assert (found.tower, found.component, found.layer) == name


@pytest.mark.parametrize("site", ["", "encoder", "encoder.x", ".3", "3"])
def test_what_is_no_site_is_told(site):
    """As for heads."""
    with pytest.raises(HeadpruneError, match="is not the name of a site"):
        SiteName.parse(site)
