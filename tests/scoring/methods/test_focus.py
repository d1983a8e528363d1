"""`focus`."""

from __future__ import annotations

import pytest

import headprune as hp
from headprune.errors import HeadpruneError
from tests.families.tiny import labelled_batches, tiny_model


def test_sensitivity_and_entropy_combined_lie_between_the_two():
    """Weight 0 orders a site as sensitivity does, 1 as entropy; other weights are refused."""
    model = tiny_model("bert").eval()
    batches = labelled_batches(model)
    for weight, alone in ((0.0, "sensitivity"), (1.0, "entropy")):
        both = hp.score(model, batches, method="sensitivity-entropy", weight=weight).scores["encoder.1"]
        single = hp.score(model, batches, method=alone).scores["encoder.1"]
        assert sorted(range(4), key=both.__getitem__) == sorted(range(4), key=single.__getitem__)
        assert max(both) == 1.0
    with pytest.raises(HeadpruneError, match="expected 0 to 1"):
        hp.score(model, batches, method="sensitivity-entropy", weight=2.0)
