"""Replaying parts of a recorded pass."""

from __future__ import annotations

import torch

import headprune as hp
from tests.families.tiny import tiny_model
from tests.scoring.toy import labelled


def test_a_recording_keeps_only_what_replays_ask_for():
    """Outputs of layers and of what comes before a projection inside its layer; not the insides of other parts."""
    from headprune.hooks import recorded

    model = tiny_model("bert")
    batch = labelled(model, "bert")
    heads = hp.find_heads(model)
    with torch.no_grad(), recorded(model) as recording:
        model(**batch)
    everything = sum(call.output is not None for call in recording.calls)
    recording.keep_only(model.get_submodule(site.output) for site in heads)
    kept = {call.module for call in recording.calls if call.output is not None}
    assert model.bert.encoder.layer[0] in kept
    assert model.bert.encoder.layer[1].attention.self in kept
    assert model.bert.encoder.layer[1].attention.self.query not in kept
    assert model.bert.encoder.layer[0].intermediate.dense not in kept
    assert model.bert.encoder.layer[1] not in kept
    assert len(kept) < everything / 2
