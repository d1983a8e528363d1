"""Tasks of every kind: what is read, what is asked, what an example gets."""

from __future__ import annotations

import pytest
from transformers import BertConfig

from headprune.errors import DataError
from headprune.tasks import Source, find_task
from headprune.tasks.task import Labels
from tests.tasks.toy import sentences, write_rows


def test_a_data_set_by_name(tmp_path):
    """The datasets library reads a folder as it reads the hub; dev is called validation there."""
    pytest.importorskip("datasets")
    rows = [{"words": text, "mood": label} for text, label in sentences(20, 0)]
    write_rows(tmp_path / "own", "train", rows)
    write_rows(tmp_path / "own", "validation", rows[:8])
    source = Source(dataset=str(tmp_path / "own"))
    task = find_task("mine", text="words", label="mood").learned_from(source)
    assert task.texts(source, "dev")[2] == [float(row["mood"]) for row in rows[:8]]
    with pytest.raises(DataError, match="has no split test"):
        task.texts(source, "test")
    with pytest.raises(DataError, match="cannot be loaded"):
        task.texts(Source(dataset=str(tmp_path / "nowhere")), "dev")


def test_classes_follow_the_model():
    """Hub models of one task order its classes differently; their names tell how."""
    nli = Labels(3, ("entailment", "neutral", "contradiction"))
    config = BertConfig(id2label={0: "CONTRADICTION", 1: "NEUTRAL", 2: "ENTAILMENT"})
    turned = nli.for_model(config, "mnli")
    assert [turned.number(label, "here") for label in ("entailment", 1, "2")] == [2.0, 1.0, 0.0]
    plain = nli.for_model(BertConfig(num_labels=3), "mnli")
    assert [plain.number(label, "here") for label in (0, 1, 2)] == [0.0, 1.0, 2.0]
    with pytest.raises(DataError, match="tells 2 classes apart, but mnli has 3"):
        nli.for_model(BertConfig(num_labels=2), "mnli")
    assert Labels(0).learned(["b", "a", "b"], "here") == Labels(2, ("a", "b"))
    assert Labels(0).learned([0, 2, 1], "here") == Labels(3)
    with pytest.raises(DataError, match="to predict numbers"):
        Labels(0).learned([0.5, 2], "here")


def test_a_metric_that_does_not_fit_is_refused():
    """Perplexity of a classifier."""
    with pytest.raises(DataError, match="takes loss and tokens; an example of sst2 has prediction and label"):
        find_task("sst2", metric="perplexity")
    with pytest.raises(DataError, match="does not take these columns"):
        find_task("questions", text="a")
