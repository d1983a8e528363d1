"""Tasks of every kind: what is read, what is asked, what an example gets."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, ViTConfig

import headprune as hp
from headprune.errors import DataError
from headprune.tasks import Source, evaluate, find_task
from headprune.tasks.ablations import ablate_metric, best_single_heads
from headprune.tasks.finetune import Recipe, finetune
from headprune.tasks.labels import Labels
from headprune.tasks.metrics import metrics
from headprune.tasks.tags import spans
from tests.tasks.toy import sentences, tokenizer, write_model

SHARED = Path(os.environ.get("HEADPRUNE_DATA", Path(__file__).parents[3] / "shared" / "data"))
TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}


def write_rows(folder, split, rows):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{split}.jsonl").write_text("\n".join(json.dumps(row) for row in rows))


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


QUESTIONS = [
    {"question": "plot was ?", "context": "the film is good and the plot is poor",
     "answers": {"text": ["poor"], "answer_start": [33]}},
    {"question": "film is ?", "context": "the film is good and the plot is poor",
     "answers": {"text": ["good"], "answer_start": [12]}},
    {"question": "story ?", "context": "a film", "answers": {"text": [], "answer_start": []}},
]  # fmt: skip


class Pointing:
    """Stands for a model's output: logits that point at given tokens."""

    def __init__(self, starts, ends, width):
        self.start_logits, self.end_logits = (torch.zeros(len(starts), width) for _ in range(2))
        for row, (start, end) in enumerate(zip(starts, ends, strict=True)):
            self.start_logits[row, start], self.end_logits[row, end] = 9.0, 9.0


def test_answers_are_compared_as_squad_does(tmp_path):
    """The right span scores 1, half of it less, none 0; no answer is an answer."""
    write_rows(tmp_path, "dev", QUESTIONS)
    task = find_task("questions")
    examples = task.load(Source(tmp_path), "dev", tokenizer(), 32)
    batch = examples.collate(list(examples.features))
    starts, ends = batch["start_positions"].tolist(), batch["end_positions"].tolist()
    assert (starts[2], ends[2]) == (0, 0)
    width = batch["input_ids"].shape[1]
    assert task.outcome(Pointing(starts, ends, width), batch).tolist() == [[1.0, 1.0], [1.0, 1.0], [1.0, 1.0]]
    wider = task.outcome(Pointing([starts[0] - 1, starts[1], 0], [ends[0], ends[1] + 1, 0], width), batch)
    assert wider.tolist() == [[0.0, pytest.approx(2 / 3)], [0.0, pytest.approx(2 / 3)], [1.0, 1.0]]
    model = transformers.BertForQuestionAnswering(BertConfig(vocab_size=23, **TINY)).eval()
    found = evaluate(model, list(examples.batches(2)), task)
    assert found.rows.shape == (3, 2)
    scores = hp.score(model, [{k: v for k, v in b.items() if k not in ("row", "_asked")} for b in examples.batches(2)])
    assert scores.counts["encoder.0"] == 3.0


def test_answers_that_are_not_there_are_told(tmp_path):
    """A wrong place, and answers of another shape; a cut-off answer is not found."""
    write_rows(tmp_path, "dev", [{**QUESTIONS[0], "answers": {"text": ["poor"], "answer_start": [3]}}])
    with pytest.raises(DataError, match="does not stand at character 3"):
        find_task("questions").load(Source(tmp_path), "dev", tokenizer(), 32)
    write_rows(tmp_path, "dev", [{**QUESTIONS[0], "answers": "poor"}])
    with pytest.raises(DataError, match="expected answers like"):
        find_task("questions").load(Source(tmp_path), "dev", tokenizer(), 32)
    write_rows(tmp_path, "dev", QUESTIONS[:1])
    cut = find_task("questions").load(Source(tmp_path), "dev", tokenizer(), 10)
    assert (cut.features[0]["start_positions"], cut.features[0]["end_positions"]) == (0, 0)


def write_digits(folder, train=400, dev=100):
    """Real handwritten digits, as files in folders of classes."""
    from PIL import Image
    from sklearn.datasets import load_digits

    digits = load_digits()
    kept = [i for i, label in enumerate(digits.target) if label < 3]
    for split, rows in (("train", kept[:train]), ("dev", kept[train : train + dev])):
        for row in rows:
            place = folder / split / ("zero", "one", "two")[digits.target[row]]
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray((digits.images[row] * 15.9).astype(np.uint8)).save(place / f"{row}.png")
    return folder


def test_images_are_learned(tmp_path):
    """A small vision transformer tells digits apart; classes are the folders' names."""
    source = Source(write_digits(tmp_path / "digits"))
    task = find_task("images").learned_from(source)
    assert task.labels.names == ("one", "two", "zero")
    processor = transformers.ViTImageProcessor(size={"height": 8, "width": 8})
    torch.manual_seed(0)
    model = transformers.ViTForImageClassification(
        ViTConfig(image_size=8, patch_size=2, **TINY, **task.model_options())
    )
    train, dev = (task.load(source, split, processor, 0) for split in ("train", "dev"))
    recipe = Recipe(epochs=6, learning_rate=3e-3, batch_size=20, seed=0)
    finetune(model, processor, task, train, tmp_path / "out", recipe, quiet=True)
    found = evaluate(model, list(dev.batches(32)), find_task("images").for_model(model.config))
    assert found.score > 0.8
    (tmp_path / "digits" / "dev" / "one" / "broken.png").write_bytes(b"no image")
    with pytest.raises(DataError, match="cannot be read as an image"):
        list(task.load(source, "dev", processor, 0).batches(32))
    with pytest.raises(DataError, match="has no folder test"):
        task.load(source, "test", processor, 0)


def word_tokenizer(text):
    words = ["[PAD]", "[UNK]", "[MASK]", "[CLS]", "[SEP]", *sorted(set(text.split()))]
    raw = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="[PAD]", unk_token="[UNK]", mask_token="[MASK]",
                                   cls_token="[CLS]", sep_token="[SEP]")  # fmt: skip


TEXT = "\n".join(text for text, _ in sentences(40, 0))


def test_perplexity_is_that_of_the_tokens(tmp_path):
    """exp of the mean loss over all predicted tokens, whatever the batches; larger without heads counts as worse."""
    (tmp_path / "valid.txt").write_text(TEXT)
    task, words = find_task("causal-lm"), word_tokenizer(TEXT)
    examples = task.load(Source(tmp_path), "dev", words, 16)
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(words), n_embd=32, n_layer=2, n_head=4, n_positions=16)).eval()
    total, count = 0.0, 0
    for row in examples.features:
        ids = torch.tensor(row["input_ids"])[None]
        with torch.no_grad():
            total += float(model(input_ids=ids, labels=ids).loss) * (ids.shape[1] - 1)
        count += ids.shape[1] - 1
    for size in (3, 64):
        found = evaluate(model, list(examples.batches(size)), task)
        assert found.score == pytest.approx(math.exp(total / count), rel=1e-5)
        assert found.rows[:, 1].sum() == count
    assert sum(len(row["input_ids"]) for row in examples.features) == len(TEXT.split())
    assert task.metric.gain(10.0, 12.0) == -2.0


def test_masked_words_are_the_same_for_every_model(tmp_path):
    """About 15 % are asked, only these have labels, and twice the same."""
    (tmp_path / "valid.txt").write_text(TEXT)
    task, words = find_task("masked-lm"), tokenizer()
    one, two = (task.load(Source(tmp_path), "dev", words, 16) for _ in range(2))
    assert all((a["input_ids"] == b["input_ids"]).all() for a, b in zip(one.features, two.features, strict=True))
    asked = np.concatenate([row["labels"] != -100 for row in one.features])
    assert 0.08 < asked.mean() < 0.25
    assert all(row["input_ids"][0] == words.cls_token_id for row in one.features)
    model = transformers.BertForMaskedLM(BertConfig(vocab_size=23, **TINY)).eval()
    found = evaluate(model, list(one.batches(8)), task)
    assert found.rows[:, 1].sum() == asked.sum()
    with pytest.raises(DataError, match="no mask token"):
        find_task("masked-lm").load(Source(tmp_path), "dev", PreTrainedTokenizerFast(
            tokenizer_object=words._tokenizer, pad_token="[PAD]", unk_token="[UNK]"), 16)  # fmt: skip


def test_any_other_head_with_labels(tmp_path):
    """Multiple choice from encoded rows of several lengths: the loss is the model's own."""
    choices = [[[5, 6, 7], [5, 8, 9]], [[5, 6, 7, 8], [9, 10, 11, 12]], [[6, 7], [7, 8]]]
    rows = [{"input_ids": ids, "labels": label} for ids, label in zip(choices, (0, 1, 1), strict=True)]
    rows = [{**row, "attention_mask": [[1] * len(line) for line in row["input_ids"]]} for row in rows]
    write_rows(tmp_path, "dev", rows)
    task = find_task("encoded")
    model = transformers.BertForMultipleChoice(BertConfig(vocab_size=23, **TINY)).eval()
    found = evaluate(model, list(task.load(Source(tmp_path), "dev", None, 0).batches(3)), task)
    alone = [
        float(model(**{name: torch.tensor(value)[None] for name, value in row.items()}).loss.detach()) for row in rows
    ]
    assert found.rows[:, 0] == pytest.approx(alone, rel=1e-5)
    write_rows(tmp_path, "dev", [{"input_ids": "text", "labels": 0}])
    with pytest.raises(DataError, match="example 1: a value is not an array"):
        task.load(Source(tmp_path), "dev", None, 0)


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


def test_the_best_single_head_is_chosen_elsewhere(tmp_path):
    """Table 6: the head is the best one of the part chosen on; its figures are those of the other part."""
    folder = write_model(tmp_path / "model", seed=3)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    task = find_task("sst2")
    parts = []
    for split, seed in (("train", 0), ("dev", 1)):
        (tmp_path / f"{split}.tsv").write_text("\n".join(f"{text}\t{label}" for text, label in sentences(40, seed)))
        examples = task.load(Source(tmp_path), split, tokenizer(), 32)
        parts.append(ablate_metric(model, list(examples.batches(20)), task, all_but_one=True))
    best = best_single_heads(*parts)
    for site, row in best.items():
        scores = {head.index: line["score"] for head, line in parts[0].rows.items() if head.site == site}
        assert row["head"] == max(scores, key=lambda index: (scores[index], -index))
        assert row["chosen_score"] == max(scores.values())
        assert row["score"] == parts[1].rows[hp.HeadId(site, row["head"])]["score"]
