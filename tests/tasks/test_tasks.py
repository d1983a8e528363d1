"""Reading data, metrics, evaluation, fine-tuning."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats as scipy_stats
from sklearn.metrics import f1_score, matthews_corrcoef
from transformers import AutoModelForSequenceClassification

import headprune as hp
from headprune.errors import DataError
from headprune.files import note_step, noted_steps
from headprune.tasks import Source, evaluate, find_task, task_names
from headprune.tasks.finetune import Recipe, finetune
from headprune.tasks.labels import Labels
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
    texts, pairs, labels = find_task(name).texts(Source(SHARED / name), split)
    assert abs(len(texts) - count) <= 1
    assert texts[0].startswith(first)
    assert set(labels) == {0.0, 1.0}
    assert (pairs is not None) == (name == "mrpc")


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


def test_labels_in_words(tmp_path):
    """MNLI's classes, and what is not one of them."""
    lines = ["sentence1\tsentence2\tgold_label", "a\tb\tneutral", "c\td\tcontradiction"]
    (tmp_path / "dev_matched.tsv").write_text("\n".join(lines))
    (tmp_path / "dev_mismatched.tsv").write_text("\n".join([*lines, "e\tf\tneutrl"]))
    assert find_task("mnli").texts(Source(tmp_path), "dev")[2] == [1.0, 2.0]
    with pytest.raises(DataError, match=r"example 3: the label is 'neutrl'. Did you mean 'neutral'"):
        find_task("mnli").texts(Source(tmp_path), "dev-mm")


BAD_FILES = {
    "empty": ("", "no rows"),
    "label out of range": ("a b\t7\n", "the label is 7; there are classes 0 to 1"),
    "missing column": ("a b\n", "no column"),
    "ragged": ("a b\t1\nc\n", "line 2: found 1 columns"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_files_are_told(case, tmp_path):
    """File, line, what was expected."""
    content, told = BAD_FILES[case]
    (tmp_path / "train.tsv").write_text(content)
    with pytest.raises(DataError, match=told):
        find_task("sst2").texts(Source(tmp_path), "train")


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


def test_metrics_are_the_usual_ones():
    """By hand and by scipy."""
    rows = np.array([[1.0, 1, 0, 0, 1], [1.0, 0, 0, 1, 1]]).T
    assert metrics["accuracy"].of(rows) == 0.6
    assert metrics["f1"].of(rows) == pytest.approx(2 * 2 / (2 * 2 + 1 + 1))
    assert metrics["macro-f1"].of(rows) == pytest.approx((2 / 3 + 1 / 2) / 2)
    assert metrics["matthews"].of(rows) == pytest.approx((2 * 1 - 1 * 1) / np.sqrt(3 * 3 * 2 * 2))
    assert metrics["matthews"].of(np.stack([np.ones(5), rows[:, 1]], axis=1)) == 0.0
    three = np.random.default_rng(1).integers(0, 3, (50, 2)).astype(float)
    for some in (rows, three):
        expected = matthews_corrcoef(some[:, 1].astype(int), some[:, 0].astype(int))
        assert metrics["matthews"].of(some) == pytest.approx(expected)
    assert metrics["f1"].of(rows) == pytest.approx(f1_score(rows[:, 1].astype(int), rows[:, 0].astype(int)))
    x, y = np.random.default_rng(0).normal(size=(2, 30))
    pairs = np.stack([x, y], axis=1)
    assert metrics["pearson"].of(pairs) == pytest.approx(scipy_stats.pearsonr(x, y).statistic)
    assert metrics["spearman"].of(pairs) == pytest.approx(scipy_stats.spearmanr(x, y).statistic)
    assert metrics["perplexity"].of(np.array([[2.0, 1.0], [4.0, 2.0]])) == pytest.approx(np.exp(2.0))


SST2 = find_task("sst2")


def examples(folder, rows=None):
    """Encoded examples of a file written for them."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f"{text}\t{label}" for text, label in (rows if rows is not None else sentences(30, 0))]
    (folder / "train.tsv").write_text("\n".join(lines))
    return SST2.load(Source(folder), "train", tokenizer(), 64)


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


def test_fine_tuning_learns_resumes_and_keeps_heads_removed(tmp_path):
    """A pruned model stays pruned: that is the fixed mask."""
    write_data(tmp_path / "data")
    source = Source(tmp_path / "data" / "sst2")
    train, dev = (SST2.load(source, split, tokenizer(), 64) for split in ("train", "dev"))
    write_model(tmp_path / "model")

    def pruned():
        start = AutoModelForSequenceClassification.from_pretrained(tmp_path / "model")
        return hp.prune_(start, hp.HeadMask.full(hp.find_heads(start)).without("encoder.0:1", "encoder.1:0"))

    model = pruned()
    batches = list(dev.batches())
    recipe = Recipe(epochs=6, learning_rate=3e-3, batch_size=20, seed=0)
    finetune(model, tokenizer(), SST2, train, tmp_path / "out", recipe, quiet=True)
    assert evaluate(model, batches, SST2).score > 0.9
    assert len(hp.find_heads(model)) == 6
    checkpoints = [path.name for path in (tmp_path / "out").glob("checkpoint-*")]
    assert checkpoints == ["checkpoint-60"]
    again = finetune(pruned(), tokenizer(), SST2, train, tmp_path / "out", recipe, quiet=True)
    assert evaluate(again, batches, SST2).score > 0.9


def test_a_run_of_updates_that_was_killed_at_its_end_takes_no_step_more(tmp_path):
    """Seven updates end in the middle of an epoch; a run that goes on from the last of them has nothing left to do."""
    data, folder = examples(tmp_path, sentences(120, 0)), write_model(tmp_path / "model")
    recipe = Recipe(epochs=9, updates=7, learning_rate=3e-3, batch_size=20, seed=0)

    def weights():
        model = AutoModelForSequenceClassification.from_pretrained(folder)
        finetune(model, tokenizer(), SST2, data, tmp_path / "out", recipe, quiet=True)
        return model.state_dict()

    whole, again = weights(), weights()
    assert all(torch.equal(whole[name], again[name]) for name in whole)
    assert [path.name for path in (tmp_path / "out").glob("checkpoint-*")] == ["checkpoint-7"]


def test_numbers_that_do_not_begin_at_0_are_names_of_classes():
    """Stars from 1 to 5 are five classes; the same stars mean the same on dev, and others are refused."""
    stars = Labels(0).learned(["5", "1", "10", "2", "2"], "reviews.csv")
    assert (stars.count, stars.names) == (4, ("1", "2", "5", "10"))
    assert [stars.number(text, "dev") for text in ("1", "10", "5.0")] == [0.0, 3.0, 2.0]
    with pytest.raises(DataError, match="the label is '3'"):
        stars.number("3", "dev")
    assert Labels(0).learned(["1", "0", "2"], "reviews.csv") == Labels(3)
    assert stars.model_options()["id2label"][3] == "10"


def test_a_note_after_half_a_line_is_not_lost(tmp_path):
    """A run may be killed while it writes one."""
    notes = tmp_path / "notes.jsonl"
    note_step(notes, {"step": 1})
    notes.write_text(notes.read_text() + '{"step": 2, "lo')
    note_step(notes, {"step": 2, "loss": 0.5})
    assert noted_steps(notes) == [{"step": 1}, {"step": 2, "loss": 0.5}]


def test_a_teacher_is_followed(tmp_path):
    """With all weight on the teacher, the pupil learns the teacher's answers, not the labels."""
    data = examples(tmp_path, sentences(120, 0))
    folder = write_model(tmp_path / "model")
    teacher = AutoModelForSequenceClassification.from_pretrained(folder)
    with torch.no_grad():
        teacher.classifier.bias.copy_(torch.tensor([-4.0, 4.0]))  # always says 1
    pupil = AutoModelForSequenceClassification.from_pretrained(folder)
    recipe = Recipe(epochs=4, learning_rate=3e-3, batch_size=20, teacher_weight=1.0, seed=0)
    finetune(pupil, tokenizer(), SST2, data, tmp_path / "out", recipe, teacher=teacher, quiet=True)
    assert evaluate(pupil, list(data.batches()), SST2).predictions.mean() == 1.0


def test_too_little_to_learn_from_is_refused(tmp_path):
    """One example, or one class."""
    model = AutoModelForSequenceClassification.from_pretrained(write_model(tmp_path / "m"))
    for rows, told in (
        ([("a", 1)], "at least 2"),
        ([("a", 1), ("b", 1)], "one class"),
    ):
        with pytest.raises(DataError, match=told):
            finetune(model, tokenizer(), SST2, examples(tmp_path, rows), tmp_path / "o", Recipe(), quiet=True)
    (tmp_path / "train.tsv").write_text("sentence1\tsentence2\tlabel\na\tb\tneutral\nc\td\tentailment\n")
    mnli = find_task("mnli")
    with pytest.raises(DataError, match="No training example has the class contradiction"):
        mnli.check_training(mnli.load(Source(tmp_path), "train", tokenizer(), 64))
