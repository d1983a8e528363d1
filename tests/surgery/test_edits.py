"""Edits of tensors compose."""

from __future__ import annotations

import copy

import headprune as hp
from headprune.surgery.edits import Edits
from tests.families.tiny import tiny_model
from tests.surgery.toy import kept


def test_edits_done_in_two_steps_are_edits_done_at_once():
    """Composition keeps places in the original."""
    model = tiny_model("gpt2")
    first = hp.prune_(copy.deepcopy(model), kept(model, decoder_0=[0, 2, 3]))
    hp.prune_(first, hp.HeadMask.full(hp.find_heads(first)).without("decoder.0:2"))
    once = hp.prune_(copy.deepcopy(model), kept(model, decoder_0=[0, 3]))
    stepwise, direct = (Edits.from_dict(m.config.headprune["edits"]) for m in (first, once))
    assert stepwise.slices == direct.slices
    assert stepwise.attributes == direct.attributes
