"""Which positions are data."""

from __future__ import annotations

import pytest
import torch
from transformers import BartForSequenceClassification, BertForMultipleChoice

import headprune as hp
from tests.families.tiny import tiny_config


def test_padding_is_no_data_where_a_decoder_classifies_or_examples_have_choices():
    """What stands at masked positions changes no score."""
    bart = BartForSequenceClassification(tiny_config("bart", num_labels=2)).eval()
    tokens = torch.randint(4, 30, (2, 9))
    tokens[:, 5:], tokens[:, 4] = 7, 2  # one end of sequence each, where the classifier looks
    mask = torch.ones_like(tokens)
    mask[:, 5:] = 0
    other = tokens.clone()
    other[:, 5:] = 11
    choices = BertForMultipleChoice(tiny_config("bert")).eval()
    texts = torch.randint(4, 30, (2, 3, 6))
    shown = torch.ones_like(texts)
    shown[..., 4:] = 0
    changed = texts.clone()
    changed[..., 4:] = 9
    for model, pair, attention in ((bart, (tokens, other), mask), (choices, (texts, changed), shown)):
        batches = [{"input_ids": x, "attention_mask": attention, "labels": torch.tensor([0, 1])} for x in pair]
        rows = [
            hp.score(model, [batch], method=name) for name in ("reconstruction", "output-norm") for batch in batches
        ]
        for one, two in ((rows[0], rows[1]), (rows[2], rows[3])):
            for site in one.scores:
                assert one.scores[site] == pytest.approx(two.scores[site], rel=1e-4, abs=1e-8)
