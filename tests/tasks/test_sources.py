"""Tokenizers and data of a task."""

from __future__ import annotations

import pytest
import transformers
from tokenizers import ByteLevelBPETokenizer
from transformers import PreTrainedTokenizerFast

from headprune.errors import DataError
from headprune.tasks import Source, find_task
from headprune.tasks.processor import ready_tokenizer
from tests.tasks.toy import TEXT, write_rows


def test_words_stay_apart_in_byte_level_tokenizers(tmp_path):
    """Reloaded with a space before each word; a tokenizer that glues is refused."""
    raw = ByteLevelBPETokenizer()
    raw.train_from_iterator([TEXT] * 5, vocab_size=300, show_progress=False)
    raw.save(str(tmp_path / "raw.json"))
    made = transformers.GPT2TokenizerFast(tokenizer_file=str(tmp_path / "raw.json"), eos_token="<|endoftext|>")
    made.save_pretrained(tmp_path)
    glued = transformers.AutoTokenizer.from_pretrained(tmp_path)
    text = "film plot"
    assert ready_tokenizer(glued, takes_words=False)(text)["input_ids"] == made(text)["input_ids"]  # left as it is
    ready = ready_tokenizer(glued, takes_words=True)
    assert ready.pad_token is not None
    ids = ready([["film", "plot"]], is_split_into_words=True, add_special_tokens=False)["input_ids"][0]
    assert ready.decode(ids).strip() == "film plot"
    write_rows(tmp_path, "train", [{"tokens": ["film", "plot"], "tags": ["O", "O"]}])
    plain = PreTrainedTokenizerFast(tokenizer_object=raw._tokenizer, pad_token="<pad>")
    if " " not in plain.decode(plain([["film", "plot"]], is_split_into_words=True)["input_ids"][0]).strip():
        task = find_task("tags").learned_from(Source(tmp_path))
        with pytest.raises(DataError, match="add_prefix_space"):
            task.load(Source(tmp_path), "train", plain, 16)
