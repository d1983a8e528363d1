"""Calibration text from .jsonl files."""

from __future__ import annotations

import json

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from headprune.errors import DataError
from headprune.tasks.corpus import corpus_batches
from tests.docs.test_guides import write_llm

TEMPLATE = "{% for m in messages %}{{ m['role'] }} {{ m['content'] }} {% endfor %}"


@pytest.fixture
def place(tmp_path):
    write_llm(tmp_path)
    return tmp_path


def batches(place, rows, *, chat=False):
    name = str(place / "llm")
    tokenizer = AutoTokenizer.from_pretrained(name)
    tokenizer.chat_template = TEMPLATE if chat else None
    (place / "llm" / "chat_template.jinja").unlink(missing_ok=True)
    tokenizer.save_pretrained(name)
    path = place / "calibration.jsonl"
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    model = AutoModelForCausalLM.from_pretrained(name)
    return corpus_batches([path], model, name, length=8, count=32, batch_size=4, seed=0)


def words_of(place):
    return next((place / "text").glob("*.txt")).read_text().split()[:12]


def test_texts_and_chats_are_calibration(place):
    """Chats by the tokenizer's template."""
    words = words_of(place)
    plain = batches(place, [{"text": " ".join(words)}] * 4)
    chats = batches(place, [{"messages": [{"role": words[0], "content": " ".join(words[1:])}]}] * 4, chat=True)
    assert plain[0]["input_ids"].shape[1] == 8
    assert {tuple(row.tolist()) for batch in chats for row in batch["input_ids"]}


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([{"messages": [{"role": "user", "content": "hello"}]}], "no chat template"),
        ([{"question": "what"}], "line 1 has neither"),
        (["{not json"], "line 1: not valid JSON"),
        ([{"text": " "}], "has no text"),
    ],
)
def test_what_is_no_text_is_told_by_its_line(place, rows, told):
    """Before a model is run."""
    with pytest.raises(DataError, match=told):
        batches(place, rows)
