"""Inputs that a model can do without, and that lead it along other paths: global attention, entities, another text."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from headprune.structure.dummy_inputs import BATCH, LENGTH, InputMaker, Inputs, example_inputs, takes
from headprune.types import Batch

LONGEST = 1024  # tokens of an example of ours: enough for the sparse attention of models for long texts
# Names of a forward that are no data: what it hands out, keeps, or makes from other inputs.
_NO_DATA = (
    "output_",
    "return_",
    "use_",
    "past_",
    "labels",
    "inputs_embeds",
    "decoder_inputs_embeds",
    "cache_",
    "logits_",
)


def optional_inputs(model: nn.Module, given: Batch) -> Iterator[Inputs]:
    """What can be made for the optional inputs of a model beside a batch, those that belong together at once."""
    maker = InputMaker(model, getattr(model, "config", None), BATCH, LENGTH, seed=0)
    ids = given.get("input_ids")
    if ids is None or ids.dim() != 2:
        return
    rows, length = ids.shape
    zeros, width = torch.zeros_like(ids), int(maker.setting("hidden_size", "d_model") or 0)
    segments = zeros.clone()
    segments[:, length // 2 :] = 1
    first = zeros.clone()
    first[:, 0] = 1
    entities = torch.full((rows, 3, int(maker.setting("max_mention_length") or 4)), -1)
    entities[:, :, 0] = torch.arange(3)
    seen = maker.normal(rows, 5, int(maker.setting("visual_embedding_dim") or 1))
    wide = int(maker.setting("encoder_hidden_size", "cross_attention_hidden_size") or width)
    targets = torch.zeros(rows, 2, length)
    targets[:, 0, length - 1] = targets[:, 1, 0] = 1.0
    ones = torch.ones(rows, 5, dtype=torch.long)
    groups: list[Inputs] = [
        {"global_attention_mask": first},
        {
            "entity_ids": torch.ones(rows, 3, dtype=torch.long), "entity_attention_mask": ones[:, :3],
            "entity_token_type_ids": zeros[:, :1].repeat(1, 3), "entity_position_ids": entities,
        },
        {"encoder_hidden_states": maker.normal(rows, 5, wide), "encoder_attention_mask": ones},
        {"token_type_ids": segments if (maker.setting("type_vocab_size") or 0) > 1 else zeros},
        {"position_ids": torch.arange(length).repeat(rows, 1)},
        {"langs": zeros},
        {"perm_mask": torch.ones(length, length).triu().repeat(rows, 1, 1), "target_mapping": targets},
        {"visual_embeds": seen, "visual_attention_mask": ones, "visual_token_type_ids": torch.ones_like(ones)},
        {"decoder_attention_mask": torch.ones_like(given.get("decoder_input_ids", ids))},
    ]  # fmt: skip
    for group in groups:
        accepted = {name: value for name, value in group.items() if name in maker.accepted and name not in given}
        if next(iter(group)) in accepted:
            yield accepted


def fullest(model: nn.Module, given: Batch) -> Inputs:
    """A batch with every optional input that the model takes together with it."""
    full = dict(given)
    for more in optional_inputs(model, given):
        if takes(model, {**full, **more}):
            full |= more
    return full


def longer_examples(model: nn.Module) -> Iterator[Inputs]:
    """Examples of ever more tokens, for models whose attention is another one on short texts."""
    length = 2 * LENGTH
    while length <= LONGEST:
        inputs = example_inputs(model, length=length)
        if not takes(model, inputs):
            return
        yield inputs
        length *= 2


def unused_inputs(model: nn.Module, given: Batch) -> list[str]:
    """Inputs of data that a model takes and that a batch does not have."""
    maker = InputMaker(model, getattr(model, "config", None), BATCH, LENGTH, seed=0)
    return [name for name in maker.accepted if name not in given and not name.startswith(_NO_DATA)]
