"""Translation as a task: what is taught, what is asked, what is refused."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
import transformers
from transformers import MBartConfig, MBartForConditionalGeneration

from headprune.errors import DataError
from headprune.scoring.context import model_inputs
from headprune.tasks import Source, evaluate, find_task
from headprune.tasks.metrics import metrics
from headprune.tasks.translation.beam_search import SEARCHES
from headprune.tasks.translation.pairs import Languages
from headprune.tasks.translation.subwords import train_subwords
from tests.tasks.parallel import EN_DE, pairs, write_pairs


@pytest.fixture
def task(tokenizer, translator):
    return replace(find_task("translation"), languages=EN_DE).for_processor(tokenizer, translator.config)


def test_the_task_teaches_with_the_start_token_and_keeps_references(tmp_path, task, tokenizer):
    """What the decoder reads is the target moved by one; padding is no label."""
    rows = task.load(Source(write_pairs(tmp_path)), "dev", tokenizer, 60)
    batch = next(rows.batches(4))
    start = task.config.decoder_start_token_id
    for row in range(4):
        target = batch["labels"][row][batch["labels"][row] != -100].tolist()
        read = batch["decoder_input_ids"][row].tolist()
        assert read[: len(target)] == [start, *target[:-1]]
        assert set(read[len(target) :]) <= {tokenizer.pad_token_id}
        said = tokenizer.decode(target, skip_special_tokens=True).strip()
        assert said == batch["_references"][row]


def test_teacher_forcing_and_search_say_which_they_are(tmp_path, task, tokenizer, translator):
    """Perplexity needs no translation; BLEU keeps counts for every sentence."""
    rows = task.load(Source(write_pairs(tmp_path, dev=6)), "dev", tokenizer, 60)
    forced = replace(task, metric=metrics["perplexity"])
    quick, slow = (evaluate(translator, list(rows.batches(3)), kind) for kind in (forced, task))
    assert quick.score > 50
    assert (quick.rows.shape, slow.rows.shape) == ((6, 2), (6, 10))
    assert "teacher forcing" in forced.settings()["by"]
    assert (task.settings()["by"], task.settings()["search"]["beams"]) == ("beam search", 5)
    assert "tok:13a" in task.settings()["signature"]
    with pytest.raises(DataError, match="The metric accuracy takes"):
        replace(task, metric=metrics["accuracy"])


def test_too_long_sentences_are_left_out_of_training_and_named_elsewhere(tmp_path, task, tokenizer):
    """A filter for training data, an error with the line for what is to be translated."""
    folder = write_pairs(tmp_path, train=20, dev=3)
    for ending in ("en", "de"):
        for name in ("train", "dev"):
            with (folder / f"{name}.{ending}").open("a") as file:
                file.write("the dog " * 40 + "\n")
    rows = task.load(Source(folder), "train", tokenizer, 40)
    assert (len(rows), rows.left_out) == (20, 1)
    with pytest.raises(DataError, match=r"dev.en, line 4: the source has \d+ tokens"):
        task.load(Source(folder), "dev", tokenizer, 40)
    with pytest.raises(DataError, match="Every pair"):
        task.load(Source(folder), "train", tokenizer, 2)


def test_a_tokenizer_of_another_model_is_refused(tmp_path, task, tokenizer, translator):
    """Other ids for padding, more tokens than vectors, a script it never saw."""
    config = type(translator.config)(**{**translator.config.to_dict(), "eos_token_id": 7})
    with pytest.raises(DataError, match="do not belong together"):
        task.for_processor(tokenizer, config)
    small = type(translator.config)(**{**translator.config.to_dict(), "vocab_size": 265})
    folder = write_pairs(tmp_path)
    with pytest.raises(
        DataError, match=r"train.en, line 1: the tokenizer gives token \d+, the model has vectors for 265"
    ):
        task.for_processor(tokenizer, small).load(Source(folder), "train", tokenizer, 60)
    words = train_subwords(["aa bb cc dd ee ff gg"] * 50, 64, "unigram")
    with pytest.raises(DataError, match=r"train.en, line 1: unknown to the tokenizer"):
        replace(task, config=None).load(Source(folder), "train", words, 200)


VOCABULARY = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0)]
VOCABULARY += [(f"▁{word}", -1.0) for pair in pairs(60, 0) for text in pair for word in text.split()]
VOCABULARY = list(dict(VOCABULARY).items())


@pytest.mark.parametrize("kind", ["MBart50Tokenizer", "MBartTokenizer"])
def test_models_for_many_languages_are_told_the_target(tmp_path, kind):
    """mBART-50's translations begin with the language's code; mBART's targets end with it, and decoding starts so."""
    tokenizer = getattr(transformers, kind)(vocab=VOCABULARY, src_lang="en_XX", tgt_lang="fr_XX")
    config = MBartConfig(
        vocab_size=len(tokenizer), d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, max_position_embeddings=64, pad_token_id=1,
        eos_token_id=2, decoder_start_token_id=2, forced_eos_token_id=None,
    )  # fmt: skip
    model = MBartForConditionalGeneration(config).eval()
    task = replace(find_task("translation"), languages=Languages("en_XX", "de_DE"), search=SEARCHES["greedy"])
    task = task.for_processor(tokenizer, config)
    german = tokenizer.convert_tokens_to_ids("de_DE")
    for name, text in (("en_XX", "the dog sees the red ball\n"), ("de_DE", "der hund den rote ball sieht\n")):
        (tmp_path / f"test.{name}").write_text(text)
    batch = next(task.load(Source(tmp_path), "test", tokenizer, 60).batches(1))
    labels, read = batch["labels"][0].tolist(), batch["decoder_input_ids"][0].tolist()
    begins = kind == "MBart50Tokenizer"
    assert labels[0 if begins else -1] == german
    assert read == [2 if begins else german, *labels[:-1]]
    with torch.no_grad():
        said = task.answer(model, model_inputs(batch)).tokens[0].tolist()
    assert (said[1] if begins else said[0]) == german
    with pytest.raises(DataError, match=r"no language 'de'\."):
        replace(task, languages=Languages("en_XX", "de")).for_processor(tokenizer, config)


def test_a_tokenizer_with_two_dictionaries_is_refused(task, tokenizer, translator):
    """FSMT's encodes targets with the source's dictionary."""
    other = copy.copy(tokenizer)
    other.get_src_vocab, other.get_tgt_vocab = (lambda: {"a": 5}), (lambda: {"b": 5})
    with pytest.raises(DataError, match="another for the target"):
        task.for_processor(other, translator.config)


def test_a_model_without_a_decoder_is_refused(task, tokenizer):
    """Translation needs an encoder-decoder."""
    from transformers import BertConfig

    with pytest.raises(DataError, match="needs an encoder-decoder"):
        task.for_processor(tokenizer, BertConfig())


def test_label_smoothing_is_the_formula(task):
    """(1 - e) of the target's loss and e of the mean over the vocabulary, over the tokens of the whole step."""
    logits, labels = torch.randn(2, 3, 5), torch.tensor([[1, 2, -100], [4, -100, -100]])
    loss = task.training_loss(0.1)({"logits": logits}, labels, num_items_in_batch=6)
    logs = logits.log_softmax(-1)
    asked = [(0, 0, 1), (0, 1, 2), (1, 0, 4)]
    expected = sum(-0.9 * logs[i, j, k] - 0.1 * logs[i, j].mean() for i, j, k in asked) / 6
    assert torch.allclose(loss, expected)
    plain = task.training_loss(0.0)({"logits": logits}, labels)
    assert torch.allclose(plain, sum(-logs[i, j, k] for i, j, k in asked) / 3)
    with pytest.raises(DataError, match="for translation"):
        find_task("sst2").training_loss(0.1)
