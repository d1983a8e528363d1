"""A small classifier and a batch."""

from __future__ import annotations

import pytest
import torch
from transformers import BertForSequenceClassification

from headprune.structure.dummy_inputs import example_inputs
from tests.families.tiny import tiny_config


@pytest.fixture
def bert():
    torch.manual_seed(0)
    return BertForSequenceClassification(tiny_config("bert", num_labels=2)).eval()


@pytest.fixture
def batch(bert):
    return example_inputs(bert, batch=3, length=7)
