"""lm-evaluation-harness takes a pruned folder as any other."""

from __future__ import annotations

import json

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

import headprune as hp
from tests.families.tiny import tiny_model

WORDS = ["<s>", "</s>", "<unk>", "the", "film", "is", "good", "bad", "long", "short"]

TASK = """
task: films
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{text}}}}"
doc_to_choice: [good, bad]
doc_to_target: label
metric_list: [{{metric: acc}}]
"""


@pytest.fixture
def folder(tmp_path):
    """A pruned model and a tokenizer, saved."""
    model = tiny_model("llama")
    heads = hp.find_heads(model, neurons=True)
    hp.prune_(model, hp.HeadMask.random(heads, prune=0.4, seed=3, unit="group"))
    model.save_pretrained(tmp_path / "pruned")
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="</s>"
    )
    tokenizer.save_pretrained(tmp_path / "pruned")
    return tmp_path / "pruned"


@pytest.mark.filterwarnings("ignore")
def test_the_harness_scores_a_pruned_folder(folder, tmp_path):
    """A task of its own: what the harness says is likelier is what the pruned model says."""
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    rows = [
        {"text": "the film is", "label": 0},
        {"text": "the long film is", "label": 1},
        {"text": "is the", "label": 0},
    ]
    data = tmp_path / "films.jsonl"
    data.write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "films.yaml").write_text(TASK.format(data=data))
    harness = HFLM(pretrained=str(folder), device="cpu", batch_size=1, dtype="float32")
    manager = TaskManager(include_path=str(tmp_path / "tasks"), include_defaults=False)
    found = simple_evaluate(harness, tasks=["films"], task_manager=manager, bootstrap_iters=0)
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    right = 0
    for row in rows:
        tokens = torch.tensor([[WORDS.index(word) for word in row["text"].split()]])
        with torch.no_grad():
            next_word = model(input_ids=tokens).logits[0, -1]
        right += int(next_word[WORDS.index("good")] < next_word[WORDS.index("bad")]) == row["label"]
    assert found["results"]["films"]["acc,none"] == pytest.approx(right / len(rows))
    assert len(hp.find_heads(harness.model)) == len(hp.find_heads(model))
