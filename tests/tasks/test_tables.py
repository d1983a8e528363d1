"""Tables in files."""

from __future__ import annotations

import gzip

import pytest
import transformers
from tokenizers import ByteLevelBPETokenizer
from transformers import PreTrainedTokenizerFast

from headprune.errors import DataError
from headprune.tasks import Source, find_task
from headprune.tasks.data import ready_tokenizer
from tests.tasks.toy import TEXT, write_rows

BAD_FILES = {
    "empty": ("", "no rows"),
    "label out of range": ("a b\t7\n", "the label is 7; there are classes 0 to 1"),
    "missing column": ("a b\n", "no column"),
    "ragged": ("a b\t1\nc\n", "line 2: found 1 columns"),
}


def test_own_files_by_columns(tmp_path):
    """CSV by name, TSV by number, JSON lines, gzipped."""
    (tmp_path / "train.csv").write_text('words,y\n"a, b",1\nc,0\n')
    (tmp_path / "dev.tsv").write_text("1\tx\ta b\n0\ty\tc\n")
    with gzip.open(tmp_path / "test.jsonl.gz", "wt") as file:
        file.write('{"words": "a b", "y": 1}\n{"words": "c", "y": 0}\n')
    named, numbered = find_task("mine", text="words", label="y"), find_task("mine", text="2", label="0")
    here = Source(tmp_path)
    named, numbered = (task.learned_from(here, split) for task, split in ((named, "train"), (numbered, "dev")))
    assert named.texts(here, "train")[0] == ["a, b", "c"]
    assert numbered.texts(here, "dev")[0] == ["a b", "c"]
    assert named.texts(here, "test")[2] == [1.0, 0.0]


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_files_are_told(case, tmp_path):
    """File, line, what was expected."""
    content, told = BAD_FILES[case]
    (tmp_path / "train.tsv").write_text(content)
    with pytest.raises(DataError, match=told):
        find_task("sst2").texts(Source(tmp_path), "train")


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
