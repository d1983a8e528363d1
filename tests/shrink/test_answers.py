"""What counts as an answer, for models that answer in their own way."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    BertConfig,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    SegformerConfig,
    SegformerForSemanticSegmentation,
)

import headprune as hp
from headprune.shrink import Shrinker
from tests.families.tiny import tiny_model

SMALL = {
    "vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
}  # fmt: skip


def tokens(**more):
    draw = torch.Generator().manual_seed(0)
    return [{"input_ids": torch.randint(5, 90, (16, 12), generator=draw), **more} for _ in range(4)]


def test_a_question_has_two_answers():
    """Where the answer begins, and where it ends."""
    torch.manual_seed(0)
    model = BertForQuestionAnswering(BertConfig(**SMALL)).eval()
    whole = Shrinker.of(model, tokens(), length=12).whole
    assert whole.closeness.answers == 2 * 16
    assert whole.closeness.agreement == 1.0
    with torch.no_grad():
        model.qa_outputs.weight[1].normal_(0, 50)
    now = whole.closeness_now()
    assert now.agreement < 0.8
    assert now.kl > 1


def test_labels_are_decided_one_by_one():
    """All turned from yes to no: none is as before, and the distance is that of Bernoulli variables."""
    torch.manual_seed(0)
    model = BertForSequenceClassification(
        BertConfig(**SMALL, num_labels=3, problem_type="multi_label_classification")
    ).eval()
    model.classifier.bias.data += 5
    whole = Shrinker.of(model, tokens(), length=12).whole
    assert whole.closeness.answers == 3 * 16
    held = torch.cat([batch["input_ids"] for batch in whole.batches])
    with torch.no_grad():
        before = model(held).logits.sigmoid()
        model.classifier.bias.data -= 10
        after = model(held).logits.sigmoid()
    now = whole.closeness_now()
    assert now.agreement == 0
    kl = before * (before / after).log() + (1 - before) * ((1 - before) / (1 - after)).log()
    assert now.kl == pytest.approx(float(kl.mean()), rel=1e-4)
    assert hp.shrink_(model, tokens(), macs=0.6, length=12, repeats=0).macs_left <= 0.6


@pytest.mark.parametrize("length", [9, 10])
def test_a_decoder_has_the_decoders_padding(length):
    """Also where both sides are of one length."""
    model = tiny_model("t5")
    mask = torch.ones(16, 10, dtype=torch.long)
    mask[:, 2:] = 0
    batch = {
        "input_ids": torch.randint(3, 50, (16, 10)), "attention_mask": mask,
        "decoder_input_ids": torch.randint(3, 50, (16, length)),
    }  # fmt: skip
    assert Shrinker.of(model, [batch] * 4, length=10).whole.closeness.answers == 16 * length
    other = {**batch, "decoder_attention_mask": torch.ones(16, length, dtype=torch.long)}
    other["decoder_attention_mask"][:, -1] = 0
    assert Shrinker.of(model, [other] * 4, length=10).whole.closeness.answers == 16 * (length - 1)


def test_an_encoder_decoder_says_what_it_needs():
    """Not the model's own error."""
    with pytest.raises(hp.HeadpruneError, match="An encoder-decoder needs labels, or decoder_input_ids"):
        hp.shrink_(tiny_model("t5"), [{"input_ids": torch.randint(3, 50, (16, 10))}] * 4, macs=0.8)


def test_an_image_has_an_answer_for_every_place():
    """Classes are the second dimension there."""
    torch.manual_seed(0)
    config = SegformerConfig(
        num_encoder_blocks=2, depths=[1, 1], sr_ratios=[2, 1], hidden_sizes=[16, 16], num_attention_heads=[2, 2],
        patch_sizes=[3, 3], strides=[4, 2], mlp_ratios=[2, 2], decoder_hidden_size=16, num_labels=5, image_size=32,
    )  # fmt: skip
    model = SegformerForSemanticSegmentation(config).eval()
    batches = [{"pixel_values": torch.randn(16, 3, 32, 32)} for _ in range(4)]
    shrinker = Shrinker.of(model, batches, parts="heads")
    assert shrinker.whole.closeness.answers == 16 * 8 * 8
    assert shrinker.whole.answers[0].values.shape[-1] == 5
    assert hp.shrink_(model, batches, prune=1, repeats=0).after.heads == 3
