"""`headprune train-mt`."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from transformers import AutoTokenizer

from headprune.errors import DataError
from headprune.tasks import Source
from headprune.tasks.translation.presets import PRESETS
from tests.command import call
from tests.tasks.parallel import task_for


class _Config:
    model_type, is_encoder_decoder = "m2m_100", True
    pad_token_id, eos_token_id, decoder_start_token_id, vocab_size = 0, 2, 1, 300


def test_train_mt_runs_on_two_processes(pair_folder, tmp_path, programs):
    """`accelerate launch`: each takes its share of the batches, one writes the result."""
    launch = ("accelerate.commands.launch", "--multi_gpu", "--num_processes", 2, "--num_machines", 1,
              "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", 0)  # fmt: skip
    words = ["-m", "headprune", "train-mt", "--data-dir", pair_folder, "--languages", "en-de", "--preset", "tiny",
             "--epochs", "2", "--out", tmp_path / "model", "--json"]  # fmt: skip
    done = programs.launch(*launch, *words)
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads((tmp_path / "model" / "train-mt.json").read_text())
    alone = PRESETS["tiny"].recipe.token_batches
    task = task_for(AutoTokenizer.from_pretrained(tmp_path / "model"), SimpleNamespace(config=_Config()))
    rows = task.load(Source(pair_folder), "train", task.processor, 60)
    assert result["validation"][-1]["step"] == len(alone(rows, processes=2)) // 2 * 2
    assert result["dev"]["metric"] == "bleu"


def test_options_of_translation_are_for_translation(pair_folder, tmp_path):
    """And train-mt is for translation."""
    for words in (("--beams", 3), ("--languages", "en-de"), ("--prefix", "x")):
        with pytest.raises(DataError, match="for translation, not for sst2"):
            call("score", "nowhere", "--task", "sst2", "--data-dir", pair_folder, *words, "--out", tmp_path)
    with pytest.raises(DataError, match="trains translation models"):
        call("train-mt", "--task", "sst2", "--data-dir", pair_folder, "--out", tmp_path)
    with pytest.raises(DataError, match="Which languages"):
        call("train-mt", "--data-dir", pair_folder, "--out", tmp_path)
    with pytest.raises(DataError, match=r"No preset called 'bases'\. Did you mean 'base'"):
        call("train-mt", "--data-dir", pair_folder, "--languages", "en-de", "--preset", "bases", "--out", tmp_path)
    with pytest.raises(DataError, match=r"No search called 'voit'\. Did you mean 'voita'"):
        call("train-mt", "--data-dir", pair_folder, "--languages", "en-de", "--search", "voit", "--out", tmp_path)
