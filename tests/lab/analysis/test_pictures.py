"""Pictures."""

from __future__ import annotations

import pytest
from transformers import AutoModelForSequenceClassification

import headprune as hp
from tests.tasks.toy import write_model


@pytest.mark.parametrize("kind", ["png", "svg"])
def test_every_picture_can_be_a_file(kind, tmp_path):
    """Heat map, histogram, curve with band, scatter."""
    from headprune.budgets.curves import Curve, Point
    from headprune.lab.analysis import pictures

    heads = hp.find_heads(AutoModelForSequenceClassification.from_pretrained(write_model(tmp_path / "m")))
    points = [tuple(Point(n, n / 8, 1 - n / 8 + more, {}) for n in range(9)) for more in (0, 0.1)]
    runs = [Curve("random", "accuracy", 8, some) for some in points]
    drawn = {
        "heat": pictures.heat_map(heads, {s.id: [0.1, None, 0.3, 0.4] for s in heads}, title="t", name="n"),
        "bars": pictures.histogram([0.1, 0.2, 0.2], title="t", name="n", reference=0.15),
        "curve": pictures.curve_picture({"random": runs, "other": runs[:1]}, title="t"),
        "scatter": pictures.scatter([1, 2], [3, 4], ["a", "b"], title="t", x="x", y="y"),
    }
    for name, figure in drawn.items():
        assert pictures.write_picture(figure, tmp_path / name, kind).stat().st_size > 1000
