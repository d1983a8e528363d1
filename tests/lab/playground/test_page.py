"""One file that asks nobody for anything."""

from __future__ import annotations

import re

from headprune.lab.playground.content import Content, Example, Point, SiteRow, Way
from headprune.lab.playground.page import hash_of, page


def small_content(text):
    site = SiteRow(id="encoder.0", heads=2, kept=(0, 1))
    point = Point(label=text, heads=2, neurons=0, parameters=1, macs=1, kept={"encoder.0": "11"})
    way = Way(name=text, axis="heads", points=(point,))
    return Content(title=text, about=text, sites=(site,), ways=(way,), examples=(Example(text=text),))


def test_text_is_never_markup():
    """Neither in the title nor in the data."""
    made = page(small_content("</script><script>alert(1)</script><b>@BODY@"))
    assert made.count("<script") == 2
    assert "<b>" not in made


def test_only_the_pages_own_script_may_run():
    """Its policy names the hash, and allows no request."""
    made = page(small_content("film"))
    script = re.findall(r"<script>(.*?)</script>", made, re.DOTALL)[-1]
    assert f"script-src '{hash_of(script)}'" in made
    assert "default-src 'none'" in made
    assert "connect-src 'none'" in made
    assert not re.findall(r'(?:src|href)="(?!data:|#)', made)
