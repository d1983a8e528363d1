"""A user's script, type-checked against the installed wheel by tools/release/typed.py; it is never run.

`assert_type` fails where a name has no type: then it is Any, which is nothing else.
"""

from contextlib import AbstractContextManager
from typing import assert_type

import torch

import headprune as hp


def prune_half(model: torch.nn.Module, batches: list[dict[str, torch.Tensor]]) -> torch.nn.Module:
    """The README's first steps."""
    heads = hp.find_heads(model)
    assert_type(heads, hp.HeadMap)
    assert_type(hp.HeadMask.random(heads, keep=0.5, seed=0), hp.HeadMask)
    scores = hp.score(model, batches, method="sensitivity")
    assert_type(scores, hp.HeadScores)
    mask = hp.select(scores, prune=0.4, at_least=1)
    assert_type(mask, hp.HeadMask)
    context: AbstractContextManager[object] = hp.masked(model, mask)
    with context:
        pass
    assert_type(hp.__version__, str)
    return hp.prune_(model, mask)
