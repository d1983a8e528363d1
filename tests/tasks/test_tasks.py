"""Reading data, metrics, evaluation, fine-tuning."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats as scipy_stats
from transformers import AutoModelForSequenceClassification

import headprune as hp
from headprune.errors import DataError
from headprune.tasks import Examples, find_task, task_names
from headprune.tasks.classification import evaluate
from headprune.tasks.finetune import Recipe, finetune
from headprune.tasks.metrics import metrics
from tests.tasks.toy import sentences, tokenizer, write_data, write_model

SHARED = Path(os.environ.get("HEADPRUNE_DATA", Path(__file__).parents[3] / "shared" / "data"))


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
    examples = find_task(name).load(SHARED / name, split)
    assert abs(len(examples) - count) <= 1
    assert examples.first[0].startswith(first)
    assert set(examples.labels) == {0.0, 1.0}
    assert (examples.second is not None) == (name == "mrpc")


def test_own_files_by_columns(tmp_path):
    """CSV by name, TSV by number, JSON lines, gzipped."""
    (tmp_path / "train.csv").write_text('words,y\n"a, b",1\nc,0\n')
    (tmp_path / "dev.tsv").write_text("1\tx\ta b\n0\ty\tc\n")
    with gzip.open(tmp_path / "test.jsonl.gz", "wt") as file:
        file.write('{"words": "a b", "y": 1}\n{"words": "c", "y": 0}\n')
    named, numbered = find_task("mine", text="words", label="y"), find_task("mine", text="2", label="0")
    assert list(named.load(tmp_path, "train").first) == ["a, b", "c"]
    assert list(numbered.load(tmp_path, "dev").first) == ["a b", "c"]
    assert list(named.load(tmp_path, "test").labels) == [1.0, 0.0]


def test_labels_in_words(tmp_path):
    """MNLI's classes, and what is not one of them."""
    lines = ["sentence1\tsentence2\tgold_label", "a\tb\tneutral", "c\td\tcontradiction"]
    (tmp_path / "dev_matched.tsv").write_text("\n".join(lines))
    (tmp_path / "dev_mismatched.tsv").write_text("\n".join([*lines, "e\tf\tneutrl"]))
    assert list(find_task("mnli").load(tmp_path, "dev").labels) == [1.0, 2.0]
    with pytest.raises(DataError, match=r"example 3: the label is 'neutrl'. Did you mean 'neutral'"):
        find_task("mnli").load(tmp_path, "dev-mm")


BAD_FILES = {
    "empty": ("", "no rows"),
    "label out of range": ("a b\t7\n", "the label is 7; sst2 has classes 0 to 1"),
    "missing column": ("a b\n", "no column"),
    "ragged": ("a b\t1\nc\n", "line 2: found 1 columns"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_files_are_told(case, tmp_path):
    """File, line, what was expected."""
    content, told = BAD_FILES[case]
    (tmp_path / "train.tsv").write_text(content)
    with pytest.raises(DataError, match=told):
        find_task("sst2").load(tmp_path, "train")


def test_missing_things_are_told(tmp_path):
    """A file, a task, JSON that is none."""
    with pytest.raises(DataError, match=r"No file for the split 'train'"):
        find_task("sst2").load(tmp_path, "train")
    with pytest.raises(DataError, match="Did you mean 'mrpc'"):
        find_task("mprc")
    (tmp_path / "train.jsonl").write_text("{\n")
    with pytest.raises(DataError, match="line 1: not JSON"):
        find_task("mine", text="a").load(tmp_path, "train")
    assert {"sst2", "cola", "mrpc", "mnli", "qqp", "qnli", "rte", "stsb"} == set(task_names())


def test_metrics_are_the_usual_ones():
    """By hand and by scipy."""
    guess, truth = np.array([1.0, 1, 0, 0, 1]), np.array([1.0, 0, 0, 1, 1])
    assert metrics["accuracy"](guess, truth) == 0.6
    assert metrics["f1"](guess, truth) == pytest.approx(2 * 2 / (2 * 2 + 1 + 1))
    assert metrics["matthews"](guess, truth) == pytest.approx((2 * 1 - 1 * 1) / np.sqrt(3 * 3 * 2 * 2))
    assert metrics["matthews"](np.ones(5), truth) == 0.0
    x, y = np.random.default_rng(0).normal(size=(2, 30))
    assert metrics["pearson"](x, y) == pytest.approx(scipy_stats.pearsonr(x, y).statistic)
    assert metrics["spearman"](x, y) == pytest.approx(scipy_stats.spearmanr(x, y).statistic)


def examples(count=30, seed=0):
    rows = sentences(count, seed)
    return Examples([text for text, _ in rows], None, [float(label) for _, label in rows])


def test_batches_are_by_length_and_know_their_rows():
    """Padded on the right, deterministic, every example once."""
    data = examples()
    made = list(data.batches(tokenizer(), batch_size=8))
    rows = torch.cat([batch["row"] for batch in made]).tolist()
    assert sorted(rows) == list(range(30))
    lengths = [int(n) for batch in made for n in batch["attention_mask"].sum(1)]
    assert lengths == sorted(lengths)
    assert all((batch["attention_mask"].diff(dim=1) <= 0).all() for batch in made)
    assert [b["row"].tolist() for b in data.batches(tokenizer(), batch_size=8)] == [b["row"].tolist() for b in made]


def test_an_evaluation_does_not_depend_on_batching(tmp_path):
    """Outcomes come back in the examples' order."""
    model = AutoModelForSequenceClassification.from_pretrained(write_model(tmp_path))
    one, other = (evaluate(model, list(examples().batches(tokenizer(), batch_size=n)), "accuracy") for n in (4, 30))
    assert np.array_equal(one.predictions, other.predictions)
    assert one.labels.tolist() == list(examples().labels)
    assert one.score == one.correct().mean()
    interval = one.interval()
    assert interval.low <= one.score <= interval.high
    with pytest.raises(DataError, match="no batch"):
        evaluate(model, [], "accuracy")


def test_fine_tuning_learns_resumes_and_keeps_heads_removed(tmp_path):
    """A pruned model stays pruned: that is the fixed mask."""
    write_data(tmp_path / "data")
    task = find_task("sst2")
    train, dev = (task.load(tmp_path / "data" / "sst2", split) for split in ("train", "dev"))
    model = AutoModelForSequenceClassification.from_pretrained(write_model(tmp_path / "model"))
    hp.prune_(model, hp.HeadMask.full(hp.find_heads(model)).without("encoder.0:1", "encoder.1:0"))
    batches = list(dev.batches(tokenizer()))
    recipe = Recipe(epochs=6, learning_rate=3e-3, batch_size=20, seed=0)
    finetune(model, tokenizer(), task, train, tmp_path / "out", recipe, quiet=True)
    assert evaluate(model, batches, "accuracy").score > 0.9
    assert len(hp.find_heads(model)) == 6
    checkpoints = [path.name for path in (tmp_path / "out").glob("checkpoint-*")]
    assert checkpoints == ["checkpoint-60"]
    again = finetune(model, tokenizer(), task, train, tmp_path / "out", recipe, quiet=True)
    assert evaluate(again, batches, "accuracy").score > 0.9


def test_a_teacher_is_followed(tmp_path):
    """With all weight on the teacher, the pupil learns the teacher's answers, not the labels."""
    task, data = find_task("sst2"), examples(120)
    folder = write_model(tmp_path / "model")
    teacher = AutoModelForSequenceClassification.from_pretrained(folder)
    with torch.no_grad():
        teacher.classifier.bias.copy_(torch.tensor([-4.0, 4.0]))  # always says 1
    pupil = AutoModelForSequenceClassification.from_pretrained(folder)
    recipe = Recipe(epochs=4, learning_rate=3e-3, batch_size=20, teacher_weight=1.0, seed=0)
    finetune(pupil, tokenizer(), task, data, tmp_path / "out", recipe, teacher=teacher, quiet=True)
    assert evaluate(pupil, list(data.batches(tokenizer())), "accuracy").predictions.mean() == 1.0


def test_too_little_to_learn_from_is_refused(tmp_path):
    """One example, or one class."""
    model = AutoModelForSequenceClassification.from_pretrained(write_model(tmp_path / "m"))
    for rows, told in (
        (Examples(["a"], None, [1.0]), "at least 2"),
        (Examples(["a", "b"], None, [1.0, 1.0]), "one class"),
    ):
        with pytest.raises(DataError, match=told):
            finetune(model, tokenizer(), find_task("sst2"), rows, tmp_path / "o", Recipe(), quiet=True)
