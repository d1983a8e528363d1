"""Projections that a plain example does not run are taken along, or the cut is refused."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from transformers import AutoModel

import headprune as hp
from headprune.errors import UnsupportedModelError
from headprune.structure.dummy_inputs import example_inputs
from headprune.structure.optional_inputs import fullest, optional_inputs
from headprune.structure.run import difference
from tests.families.tiny import answer_of, tiny_model


@pytest.mark.parametrize(
    ("family", "wanted", "other"),
    [("longformer", "global_attention_mask", "query_global"), ("luke", "entity_ids", "w2e_query")],
)
def test_projections_of_other_inputs_are_cut_along(family, wanted, other, tmp_path):
    """Longformer's global attention and LUKE's entities: pruned, and reloaded, the model answers as the masked one."""
    model = tiny_model(family, auto=AutoModel)
    plain = example_inputs(model)
    full = fullest(model, plain)
    assert wanted not in plain
    assert wanted in full
    heads = hp.find_heads(model)
    mask = hp.HeadMask.full(heads).without("encoder.0:1", "encoder.1:0", "encoder.1:2")
    for example in (None, plain, example_inputs(model, batch=1, length=5)):
        pruned = hp.prune_(copy.deepcopy(model), mask, example=example)
        for batch in (plain, full):
            with hp.masked(model, mask):
                expected = answer_of(model, batch)
            assert difference(answer_of(pruned, batch), expected).is_small
    widths = {m.out_features for name, m in pruned.named_modules() if name.endswith(f"layer.0.attention.self.{other}")}
    assert widths == {24}
    pruned.save_pretrained(tmp_path)
    loaded = AutoModel.from_pretrained(tmp_path).eval()
    assert difference(answer_of(loaded, full), expected).is_small


class TwoWays(nn.Module):
    """Attention that has another query projection for a flag."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(8, 8) for _ in range(4))
        self.other_q = nn.Linear(8, 8)

    def forward(self, x, flag=None):
        q = self.q(x) if flag is None else self.other_q(x)
        parts = [t.unflatten(-1, (-1, 4)).transpose(1, 2) for t in (q, self.k(x), self.v(x))]
        mixed = nn.functional.scaled_dot_product_attention(*parts)
        return self.o(mixed.transpose(1, 2).flatten(2))


class Around(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = TwoWays()

    def forward(self, x, flag=None):
        return self.attention(x, flag)


def test_what_no_example_runs_is_refused_by_name():
    """With the inputs that the example does not have. The model is left as it was."""
    model, example = Around(), {"x": torch.randn(2, 5, 8)}
    mask = hp.HeadMask.full(hp.find_heads(model, example=example)).without("encoder.0:1")
    with pytest.raises(UnsupportedModelError, match=r"does not run its other_q.* does not have: flag"):
        hp.prune_(model, mask, example=example)
    assert model.attention.q.out_features == 8


def test_optional_inputs_are_those_that_the_model_takes():
    """BERT's segments and positions; its decoder reads another text."""
    model = tiny_model("bert", auto=AutoModel, is_decoder=True, add_cross_attention=True)
    names = {name for group in optional_inputs(model, example_inputs(model)) for name in group}
    assert {"token_type_ids", "position_ids", "encoder_hidden_states", "encoder_attention_mask"} == names
    assert names <= fullest(model, example_inputs(model)).keys()
