"""Tags of words."""

from __future__ import annotations

import pytest
import transformers
from transformers import BertConfig

from headprune.errors import DataError
from headprune.tasks import Source, evaluate, find_task
from headprune.tasks.ablations import ablate_metric
from headprune.tasks.finetune import Recipe, finetune
from headprune.tasks.metrics import metrics
from headprune.tasks.tags import spans
from tests.places import SHARED
from tests.tasks.toy import TINY, sentences, tokenizer, write_rows


def tagged(count, seed):
    """Good words are names, of one or two words."""
    rows = []
    for text, _ in sentences(count, seed):
        words = text.split()
        marks = ["B-NICE" if word in ("good", "fine", "great", "lovely") else "O" for word in words]
        rows.append({"tokens": words, "tags": marks})
    return rows


def test_tags_are_learned_and_told(tmp_path):
    """Tag names come from the training data, go into the model and come back from it."""
    for split, count, seed in (("train", 200, 0), ("dev", 50, 1)):
        write_rows(tmp_path, split, tagged(count, seed))
    source = Source(tmp_path)
    task = find_task("tags", metric="span-f1").learned_from(source)
    assert task.labels.names == ("B-NICE", "O")
    model = transformers.BertForTokenClassification(BertConfig(vocab_size=23, **TINY, **task.model_options()))
    train, dev = (task.load(source, split, tokenizer(), 32) for split in ("train", "dev"))
    recipe = Recipe(epochs=4, learning_rate=3e-3, batch_size=20, seed=0)
    finetune(model, tokenizer(), task, train, tmp_path / "out", recipe, quiet=True)
    again = find_task("tags", metric="span-f1").for_model(model.config)
    found = evaluate(model, list(dev.batches(16)), again)
    assert found.score > 0.95
    assert metrics["token-accuracy"].of(found.rows) > 0.95
    assert found.rows[:, 1].sum() == sum(len(row["tags"]) for row in tagged(50, 1))
    ablated = ablate_metric(model, list(dev.batches(16)), again)
    assert ablated.base.score == found.score
    assert len(ablated.rows) == 8


def test_spans_are_read_as_usual():
    """B begins, I goes on, another kind begins anew, O ends; a lone I begins."""
    assert spans(["B-A", "I-A", "O", "I-B", "B-B", "I-A"]) == {("A", 0, 1), ("B", 3, 3), ("B", 4, 4), ("A", 5, 5)}
    assert spans(["O", "O"]) == set()


def test_a_real_treebank_is_read():
    """CoNLL-U: words with their parts of speech, ranges left out."""
    if not (SHARED / "ud-ewt").is_dir():
        pytest.skip(f"{SHARED / 'ud-ewt'} is not there: set HEADPRUNE_DATA to a folder with the data")
    words, tags, *_ = find_task("tags").rows(Source(SHARED / "ud-ewt"), "en_ewt-ud-dev")
    assert len(words) == 2001
    assert words[0][:4] == ["From", "the", "AP", "comes"]
    assert tags[0][:4] == ["ADP", "DET", "PROPN", "VERB"]
    task = find_task("tags").learned_from(Source(SHARED / "ud-ewt"), "en_ewt-ud-dev")
    assert task.labels.count == 17


def test_words_without_tags_are_told(tmp_path):
    """Lengths that differ, and texts that are not split."""
    write_rows(tmp_path, "train", [{"tokens": ["a", "b"], "tags": ["O"]}])
    with pytest.raises(DataError, match="example 1: expected a list of words and a list of as many tags"):
        find_task("tags").rows(Source(tmp_path), "train")


def test_spans_need_names(tmp_path):
    """Numbered tags have no spans; a data set that names its numbers does."""
    datasets = pytest.importorskip("datasets")
    write_rows(tmp_path, "train", [{"tokens": ["film", "plot"], "tags": [0, 1]}])
    source = Source(tmp_path)
    task = find_task("tags", metric="span-f1").learned_from(source)
    with pytest.raises(DataError, match="span-f1 needs tags with names"):
        task.load(source, "train", tokenizer(), 16)
    from headprune.tasks.tables import _class_names

    assert _class_names(datasets.List(datasets.ClassLabel(names=["O", "B-X"]))) == ["O", "B-X"]
    assert _class_names(datasets.ClassLabel(names=["no", "yes"])) == ["no", "yes"]
    assert _class_names(datasets.Value("int64")) == []
