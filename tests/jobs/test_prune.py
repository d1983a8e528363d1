"""The job behind `headprune prune`, called from Python."""

from __future__ import annotations

import json
from dataclasses import replace

import headprune as hp
from headprune.jobs.options.prune import Choice, PruneOptions
from headprune.jobs.prune import PruneResult, prune
from headprune.typed_json import from_plain
from tests.families.tiny import tiny_model

# What 0.1.0 stored, in its order.
KEYS = ["removed", "kept", "original", "heads", "kv_heads", "parameters", "macs", "by", "difference", "out"]


def test_a_result_is_typed_and_stored_as_it_was(tmp_path):
    """The file beside the model has the keys of 0.1.0, and reads as the same result."""
    tiny_model("bert").save_pretrained(tmp_path / "model")
    options = PruneOptions(model=str(tmp_path / "model"), choice=Choice(prune="50%"), out=tmp_path / "small")
    result = prune(options)
    stored = json.loads((tmp_path / "small" / "prune.json").read_text())
    assert list(stored) == KEYS
    assert from_plain(PruneResult, stored) == replace(result, text="")
    assert result.message().startswith("removed 4 of 8 heads")
    assert result.heads == (8, 4)
    assert result.difference < 1e-5


def test_a_dry_run_tells_the_same_without_a_folder(tmp_path):
    """What would be removed, of neurons, too."""
    model = tiny_model("bert")
    model.save_pretrained(tmp_path)
    (tmp_path / "mask.json").write_text(hp.HeadMask.full(hp.find_heads(model, neurons=True)).to_json())
    result = prune(PruneOptions(model=str(tmp_path), choice=Choice(mask=tmp_path / "mask.json"), dry_run=True))
    assert list(result.to_dict()) == [*KEYS[:5], "neurons", *KEYS[5:]]
    assert result.neurons[0] == result.neurons[1]
    assert (result.out, result.difference) == (None, None)
