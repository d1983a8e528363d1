"""Pruned equals masked, or the model is as it was."""

from __future__ import annotations

import pytest
import torch
from transformers import BertForSequenceClassification

import headprune as hp
from headprune.errors import VerificationError
from headprune.structure.run import Difference, difference
from headprune.surgery import remove
from headprune.surgery.prune import prune_with_report
from tests.families.tiny import answer_of, tiny_config, tiny_model
from tests.surgery.toy import state


class CountingBert(BertForSequenceClassification):
    """Its answer depends on the number of heads of its first layer, plainly or by so many units of its precision."""

    units: float | None = None

    def forward(self, input_ids=None, attention_mask=None, **kwargs):
        output = super().forward(input_ids, attention_mask, **kwargs)
        heads = self.bert.encoder.layer[0].attention.self.num_attention_heads
        output.logits = output.logits + heads * (
            self.units * torch.finfo(output.logits.dtype).eps if self.units else 1.0
        )
        return output


def counting_bert(units=None, dtype=torch.float32):
    torch.manual_seed(0)
    model = CountingBert(tiny_config("bert")).eval().to(dtype)
    model.units = units
    return model, hp.HeadMask.full(hp.find_heads(model)).without("encoder.0:1", "encoder.1:0")


FAR = Difference(float("nan"), 1e-5)


def test_a_failed_verification_puts_the_model_back(monkeypatch):
    """Weights, counts, modules, configs and hooks are what they were."""
    for family in ("t5", "mpnet", "siglip", "phi3"):
        model = tiny_model(family)
        heads = hp.find_heads(model)
        before, plain = state(model), answer_of(model)
        # Blocks, whose answers are lists, are equal; the whole model is not.
        monkeypatch.setattr(remove, "difference", lambda a, b: difference(a, b) if isinstance(a, list) else FAR)
        with pytest.raises(VerificationError, match="put back"):
            hp.prune_(
                model,
                hp.HeadMask.full(heads).without(
                    heads.sites[0].id, *(f"{heads.sites[-1].id}:{i}" for i in heads.sites[-1].groups[0])
                ),
            )
        monkeypatch.undo()
        assert state(model) == before
        assert difference(answer_of(model), plain).largest == 0.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rounding_is_not_taken_for_a_difference(dtype):
    """Sums in another order may be further apart than models should be: in double precision they are equal."""
    model, mask = counting_bert(1e4, dtype)
    tensors = [*model.parameters(), *model.buffers()]
    outcome = prune_with_report(model, mask)
    assert outcome.difference.largest > outcome.difference.allowed
    assert len(hp.find_heads(model)) == len(mask)
    assert {tensor.dtype for tensor in model.parameters()} == {dtype}
    left = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
    assert len(left & set(map(id, tensors))) > 10  # the tensors that were not cut are the ones that were there


def test_a_difference_that_is_not_rounding_is_refused():
    """And the model is as it was."""
    model, mask = counting_bert()
    before, plain = state(model), answer_of(model)
    with pytest.raises(VerificationError, match=r"put back.*not rounding.*hp\.masked"):
        hp.prune_(model, mask)
    assert state(model) == before
    assert difference(answer_of(model), plain).largest == 0.0


def test_where_double_precision_cannot_tell_nothing_is_cut():
    """A model that does not run so is refused as one that differs, and told why."""
    model, mask = counting_bert(1e4)

    def no_double(self, args):
        if args[0].dtype == torch.float64:
            raise RuntimeError("no kernel for float64")

    model.classifier.register_forward_pre_hook(no_double)
    before = state(model)
    with pytest.raises(VerificationError, match="Double precision would tell"):
        hp.prune_(model, mask)
    assert state(model) == before
