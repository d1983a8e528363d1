"""Classes of texts: real files, batches, evaluation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification

from headprune.errors import DataError
from headprune.tasks import Source, evaluate, find_task, task_names
from tests.places import SHARED
from tests.tasks.toy import SST2, examples, write_model


@pytest.mark.parametrize(
    ("name", "split", "count", "first"),
    [
        ("sst2", "train", 6920, "a stirring , funny"),
        ("sst2", "dev", 872, "one long string"),
        ("cola", "train", 8551, "Our friends won't"),
        ("cola", "dev", 527, "The sailors rode"),
        ("cola", "dev-out", 516, "Somebody just left"),
        ("mrpc", "train", 3576, "Amrozi accused"),
    ],
)
def test_the_real_files_are_read(name, split, count, first):
    """With and without header, byte-order mark and all."""
    if not (SHARED / name).is_dir():
        pytest.skip(f"{SHARED / name} is not there: set HEADPRUNE_DATA to a folder with the data")
    texts, pairs, labels = find_task(name).texts(Source(SHARED / name), split)
    assert abs(len(texts) - count) <= 1
    assert texts[0].startswith(first)
    assert set(labels) == {0.0, 1.0}
    assert (pairs is not None) == (name == "mrpc")


def test_missing_things_are_told(tmp_path):
    """A file, a task, JSON that is none."""
    with pytest.raises(DataError, match=r"No file for the split 'train'"):
        find_task("sst2").texts(Source(tmp_path), "train")
    with pytest.raises(DataError, match="Did you mean 'mrpc'"):
        find_task("mprc")
    (tmp_path / "train.jsonl").write_text("{\n")
    with pytest.raises(DataError, match="line 1: not JSON"):
        find_task("mine", text="a").texts(Source(tmp_path), "train")
    assert {"sst2", "cola", "mrpc", "mnli", "qqp", "qnli", "rte", "stsb"} < set(task_names())


def test_batches_are_by_length_and_know_their_rows(tmp_path):
    """Padded on the right, deterministic, every example once."""
    data = examples(tmp_path)
    made = list(data.batches(batch_size=8))
    rows = torch.cat([batch["row"] for batch in made]).tolist()
    assert sorted(rows) == list(range(30))
    lengths = [int(n) for batch in made for n in batch["attention_mask"].sum(1)]
    assert lengths == sorted(lengths)
    assert all((batch["attention_mask"].diff(dim=1) <= 0).all() for batch in made)
    assert [b["row"].tolist() for b in data.batches(batch_size=8)] == [b["row"].tolist() for b in made]


def test_an_evaluation_does_not_depend_on_batching(tmp_path):
    """Outcomes come back in the examples' order."""
    model = AutoModelForSequenceClassification.from_pretrained(write_model(tmp_path))
    data = examples(tmp_path)
    one, other = (evaluate(model, list(data.batches(n)), SST2) for n in (4, 30))
    assert np.array_equal(one.predictions, other.predictions)
    assert one.labels.tolist() == [row["labels"] for row in data.features]
    assert one.score == one.correct().mean()
    interval = one.interval()
    assert interval.low <= one.score <= interval.high
    with pytest.raises(DataError, match="no batch"):
        evaluate(model, [], SST2)
