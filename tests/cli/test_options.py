"""What options mean."""

from __future__ import annotations

import pytest
import transformers
from transformers import BertConfig

from headprune.checkpoint.load_model import load_model
from headprune.errors import CheckpointError, DataError, HeadpruneError, MaskError
from headprune.jobs.options.base import amount
from tests.command import call
from tests.families.tiny import tiny_model
from tests.tasks.toy import TINY, sentences, tokenizer, write_data, write_model, write_rows


def test_amounts_on_the_command_line():
    """`50%` is a share, `72` a count."""
    assert amount("50%") == 0.5
    assert amount("12.5%") == 0.125
    assert amount("72") == 72
    assert isinstance(amount("1"), int)
    for text in ("half", "0.5", "-3", "50 %x", ""):
        with pytest.raises(MaskError):
            amount(text)


def test_the_command_line_explains_what_it_cannot_load(tmp_path):
    """A truncated file, and a device that is not there."""
    tiny_model("bert").save_pretrained(tmp_path / "model")
    with pytest.raises(HeadpruneError, match="device 'nowhere'"):
        load_model(str(tmp_path / "model"), "nowhere")
    weights = tmp_path / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="cannot be loaded"):
        load_model(str(tmp_path / "model"), "cpu")


def test_bad_options_and_models_are_told(tmp_path):
    """No such model, another kind of model, two places for data, sizes of nothing, labels that are no numbers."""
    data, model = write_data(tmp_path / "data", 20, 12), write_model(tmp_path / "model")
    where = ("--data-dir", data, "--out", tmp_path / "out")
    with pytest.raises(CheckpointError, match="cannot be loaded"):
        call("score", tmp_path / "nowhere", *where)
    with pytest.raises(DataError, match="expected 1 and 2 or more"):
        call("score", model, *where, "--batch-size", 0)
    with pytest.raises(DataError, match="give one of them"):
        call("score", model, *where, "--dataset", "glue:sst2")
    transformers.BertForMaskedLM(BertConfig(vocab_size=23, **TINY)).save_pretrained(tmp_path / "lm")
    tokenizer().save_pretrained(tmp_path / "lm")
    with pytest.raises(DataError, match="is a BertForMaskedLM; sst2 needs a model ForSequenceClassification"):
        call("score", tmp_path / "lm", *where)
    three = [{"text": text, "mood": row % 3} for row, (text, _) in enumerate(sentences(30, 0))]
    for split in ("train", "dev"):
        write_rows(tmp_path / "three", split, three)
    call("finetune", model, *where, "--epochs", 0.1, "--json")
    with pytest.raises(CheckpointError, match="has a head that does not fit"):
        call("finetune", tmp_path / "out", "--task", "mood", "--text", "text", "--label", "mood", "--data-dir",
             tmp_path / "three", "--out", tmp_path / "other", "--json")  # fmt: skip
    (tmp_path / "data" / "sst2" / "dev.tsv").write_text("a\tnan\n")
    with pytest.raises(DataError, match="the label is 'nan'"):
        call("ablate", tmp_path / "out", *where)
    (tmp_path / "lines.csv").write_text("text,label\na,1\n\n")
    from headprune.tasks.tables import read_table

    assert read_table(tmp_path / "lines.csv").column("label") == ["1"]
