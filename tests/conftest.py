"""Shared by all tests: one thread per worker, no network, a real small model."""

from __future__ import annotations

import os
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["OMP_NUM_THREADS"] = "1"  # two workers on two cores; also for the processes that tests start

import pytest
import torch
import transformers
from hypothesis import settings

torch.set_num_threads(1)
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

settings.register_profile("headprune", deadline=None, max_examples=60, derandomize=True)
settings.load_profile("headprune")


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The folder of all-MiniLM-L6-v2, a real trained model."""
    from headprune.cli.demo import minilm_folder

    return minilm_folder()
