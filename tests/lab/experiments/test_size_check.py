"""Models of the papers' size."""

from __future__ import annotations

import json

import pytest

import headprune as hp
from tests.command import invoked


@pytest.mark.parametrize(("name", "millions"), [("shim-table-1", 54.6), ("shim-table-2", 40.9)])
def test_models_of_the_papers_size_are_built_and_trained(name, millions):
    """`run --check`: the true shape, the published number of parameters, two steps."""
    (one,) = json.loads(invoked("run", name, "--check", "--json").stdout)[name]
    assert one["agrees"] is True
    assert one["layers"] / 1e6 == pytest.approx(millions, abs=0.05)
    assert len(one["losses"]) == 2


def test_what_has_nothing_to_build_says_so():
    """Figures by arithmetic have no scale of their own for it; others start from models of the hub."""
    with pytest.raises(hp.HeadpruneError, match="no scale 'paper'"):
        invoked("run", "shim-figure-1", "--check")
