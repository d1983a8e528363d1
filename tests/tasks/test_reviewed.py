"""Faults that a review of the tasks found, each with what should happen."""

from __future__ import annotations

import json

import pytest
import torch
import transformers
from tokenizers import ByteLevelBPETokenizer
from transformers import AutoModelForSequenceClassification, BertConfig, GPT2Config, PreTrainedTokenizerFast
from typer.testing import CliRunner

from headprune.cli.app import app
from headprune.cli.taskdata import ready_tokenizer
from headprune.errors import CheckpointError, DataError
from headprune.heads import HeadScores
from headprune.tasks import Source, evaluate, find_task
from tests.tasks.test_kinds import TEXT, TINY, write_rows
from tests.tasks.toy import sentences, tokenizer, write_data, write_model


def call(*words):
    return CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False).stdout


def test_a_head_that_is_trained_further_keeps_its_order(tmp_path):
    """A model with its own names for the classes does not have them swapped."""
    rows = [{"text": text, "mood": "pos" if label else "neg"} for text, label in sentences(200, 0)]
    for split in ("train", "dev"):
        write_rows(tmp_path / "data", split, rows)
    words = ("--task", "mood", "--text", "text", "--label", "mood", "--data-dir", tmp_path / "data", "--batch-size", 20,
             "--json")  # fmt: skip
    call("finetune", write_model(tmp_path / "m"), *words, "--epochs", 6, "--lr", 3e-3, "--out", tmp_path / "first")
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "first")
    assert model.config.id2label == {0: "neg", 1: "pos"}
    with torch.no_grad():  # the same model with its classes the other way round
        model.classifier.weight.copy_(model.classifier.weight.flip(0))
        model.classifier.bias.copy_(model.classifier.bias.flip(0))
    model.config.id2label, model.config.label2id = {0: "pos", 1: "neg"}, {"pos": 0, "neg": 1}
    model.save_pretrained(tmp_path / "turned")
    tokenizer().save_pretrained(tmp_path / "turned")
    told = call("finetune", tmp_path / "turned", *words, "--epochs", 0.1, "--lr", 1e-9, "--out", tmp_path / "second")
    assert json.loads(told[told.index("{") :])["dev"]["score"] > 0.9
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path / "second")
    assert again.config.id2label == {0: "pos", 1: "neg"}
    with pytest.raises(CheckpointError, match="teacher's classes"):
        call("finetune", tmp_path / "first", *words, "--teacher", tmp_path / "turned", "--out", tmp_path / "third")


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


def test_spans_need_names(tmp_path):
    """Numbered tags have no spans; a data set that names its numbers does."""
    datasets = pytest.importorskip("datasets")
    write_rows(tmp_path, "train", [{"tokens": ["film", "plot"], "tags": [0, 1]}])
    source = Source(tmp_path)
    task = find_task("tags", metric="span-f1").learned_from(source)
    with pytest.raises(DataError, match="span-f1 needs tags with names"):
        task.load(source, "train", tokenizer(), 16)
    from headprune.tasks.sources import _class_names

    assert _class_names(datasets.List(datasets.ClassLabel(names=["O", "B-X"]))) == ["O", "B-X"]
    assert _class_names(datasets.ClassLabel(names=["no", "yes"])) == ["no", "yes"]
    assert _class_names(datasets.Value("int64")) == []


def test_accuracy_of_numbers_is_refused():
    """Regression has its own metrics, classes have theirs."""
    with pytest.raises(
        DataError, match="takes prediction and label; an example of stsb has predicted and right number"
    ):
        find_task("stsb", metric="accuracy")
    with pytest.raises(DataError, match="Choose another metric"):
        find_task("mine", text="a").for_model(BertConfig(num_labels=1))
    assert find_task("mine", text="a", metric="spearman").labels.is_regression


def test_masked_words_are_never_taken_for_next_words(tmp_path):
    """On untrained models both losses are near: the task knows which it is."""
    (tmp_path / "valid.txt").write_text(TEXT)
    task = find_task("masked-lm")
    batches = list(task.load(Source(tmp_path), "dev", tokenizer(), 16).batches(8))
    for seed in range(6):
        torch.manual_seed(seed)
        model = transformers.BertForMaskedLM(BertConfig(vocab_size=23, **TINY)).eval()
        found = evaluate(model, batches, task)
        total, count = 0.0, 0
        for batch in batches:
            asked = int((batch["labels"] != -100).sum())
            inputs = {name: value for name, value in batch.items() if name != "row"}
            with torch.no_grad():
                total += float(model(**inputs).loss) * asked
            count += asked
        assert found.rows[:, 0].sum() == pytest.approx(total, rel=1e-4)


def test_encoded_rows_do_not_depend_on_their_batch(tmp_path):
    """A classifier on a decoder, with a padding token that is not 0, and rows without attention masks."""
    rows = [{"input_ids": list(range(5, 5 + size)), "labels": size % 2} for size in (3, 5, 7, 4)]
    write_rows(tmp_path, "dev", rows)
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 16}
    config = GPT2Config(vocab_size=50, pad_token_id=49, num_labels=2, **sizes)
    torch.manual_seed(0)
    model = transformers.GPT2ForSequenceClassification(config).eval()
    task = find_task("encoded").for_model(config)
    examples = task.load(Source(tmp_path), "dev", None, 0)
    one, four = (evaluate(model, list(examples.batches(size)), task).rows for size in (1, 4))
    assert one == pytest.approx(four, rel=1e-4)


def test_a_decoder_without_padding_is_evaluated_in_batches(tmp_path):
    """The tokenizer's padding becomes the model's."""
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=23, n_embd=32, n_layer=2, n_head=4, n_positions=64, num_labels=2, bos_token_id=2,
                        eos_token_id=3)  # fmt: skip
    transformers.GPT2ForSequenceClassification(config).save_pretrained(tmp_path / "model")
    tokenizer().save_pretrained(tmp_path / "model")
    data = write_data(tmp_path / "data", 20, 12)
    words = ("ablate", tmp_path / "model", "--data-dir", data, "--out", tmp_path / "out", "--json")
    whole, single = (json.loads(call(*words, "--batch-size", size)) for size in (12, 1))
    assert whole["base"]["examples"] == 12
    assert whole["heads"] == single["heads"]  # padding changes nothing


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


def test_what_training_left_is_not_part_of_the_smaller_model(tmp_path):
    """No checkpoints, no fine-tuning report; the tokenizer is."""
    data, model = write_data(tmp_path / "data", 20, 12), write_model(tmp_path / "model")
    call("finetune", model, "--data-dir", data, "--epochs", 1, "--out", tmp_path / "tuned", "--json")
    call("prune", tmp_path / "tuned", "--prune", "50%", "--out", tmp_path / "small")
    names = {path.name for path in (tmp_path / "small").iterdir()}
    assert "tokenizer.json" in names
    assert not names & {"checkpoints", "finetune.json"}


def test_curve_and_prune_cut_the_same_heads(tmp_path):
    """One view of a score; two files of one method are two lines."""
    data, model = write_data(tmp_path / "data", 30, 20), write_model(tmp_path / "model")
    where = ("--data-dir", data)
    for name, seed in (("a", 0), ("b", 1)):
        call("score", model, *where, "--method", "ablation", "--examples", 12, "--seed", seed, "--out", tmp_path / name)
    files = [tmp_path / name / "scores.json" for name in ("a", "b")]
    told = call("curve", model, *where, "--scores", files[0], "--scores", files[1], "--random", 0, "--steps", 2,
                "--out", tmp_path / "curve", "--json")  # fmt: skip
    curves = json.loads(told)["curves"]
    assert len(curves) == 2
    kept = next(run for name, (run,) in curves.items() if str(files[0]) in name)["points"][1]["kept"]
    cut = json.loads(call("prune", model, "--scores", files[0], "--prune", "50%", "--dry-run", "--json"))
    gone = {f"{site}:{head}" for site, heads in cut["removed"].items() for head in heads}
    assert gone == {f"{site}:{head}" for site in kept for head in range(4) if head not in kept[site]}
    assert HeadScores.from_json(files[0].read_text()).view == "none"
