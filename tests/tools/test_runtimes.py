"""The table of runtimes in docs/deployment.md is what trying found."""

from __future__ import annotations

import json

import pytest
from tools.runtimes import BEGIN, END, FAMILIES, FORMATS, PAGE, SHAPES, STORED, answer, table


def stored():
    return json.loads(STORED.read_text())


def test_the_page_has_the_stored_table():
    """Every runtime, family and shape."""
    page = PAGE.read_text()
    assert page.partition(BEGIN)[2].partition(END)[0].strip() == table(stored())
    assert len(stored()["cells"]) == len(FORMATS) * len(FAMILIES) * len(SHAPES)


@pytest.mark.parametrize(
    "cell",
    ["gguf llama emptied", "gguf bert alike", "plain llama uneven heads", "standalone bert emptied",
     "openvino bert uneven neurons"],
)  # fmt: skip
def test_a_cell_is_what_trying_finds(cell):
    """Some of them; `make test-slow` tries all."""
    name, _, rest = cell.partition(" ")
    family, _, shape = rest.partition(" ")
    assert answer(name, family, shape) == stored()["cells"][cell]
