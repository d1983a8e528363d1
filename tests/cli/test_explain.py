"""`headprune explain`."""

from __future__ import annotations

import pytest

from headprune.errors import HeadpruneError
from tests.command import call


def test_every_error_explains_itself():
    """All of them in a list, one of them in full; the note of an error leads there."""
    from headprune import errors

    names = [name for name, thing in vars(errors).items() if isinstance(thing, type)]
    told = call("explain")
    for name in names:
        assert name in told
        page = call("explain", name)
        assert "- " in page
        error = getattr(errors, name)("a message")
        assert str(error) == "a message"
        assert error.__notes__ == [f"More: headprune explain {name}"]
    assert "unit=" in call("explain", "MaskError")
    with pytest.raises(HeadpruneError, match="Did you mean 'MaskError'"):
        call("explain", "MaskEror")
