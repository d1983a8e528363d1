"""Parallel text, subwords, BLEU, beam search: the parts of the translation task, each against what it must equal."""

from __future__ import annotations

import copy
import gzip
import io
import json
import math
import subprocess
import sys
from contextlib import redirect_stdout
from dataclasses import replace

import numpy as np
import pytest
import sacrebleu
import torch
import transformers
from sacrebleu.significance import PairedTest
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, MBartConfig, MBartForConditionalGeneration

from headprune.errors import DataError
from headprune.scoring.context import model_inputs
from headprune.stats import bootstrap_interval, paired_bootstrap
from headprune.tasks import Source, evaluate, find_task
from headprune.tasks.metrics import metrics
from headprune.tasks.token_batches import TokenBatches
from headprune.tasks.translation.beam_search import SEARCHES, GnmtPenalty, Search
from headprune.tasks.translation.pairs import Languages, read_pairs, within_length
from headprune.tasks.translation.presets import PRESETS, Shape, new_translator
from headprune.tasks.translation.quality import corpus_score, sentence_counts, signature
from headprune.tasks.translation.subwords import subwords_of, train_subwords
from tests.tasks.parallel import pairs, write_pairs

EN_DE = Languages("en", "de")


@pytest.fixture(scope="module")
def tokenizer():
    return train_subwords([text for pair in pairs(300, 0) for text in pair], 320)


@pytest.fixture(scope="module")
def translator(tokenizer):
    return new_translator(Shape(layers=2, width=32, heads=4, feed_forward=48, positions=64), tokenizer, seed=0).eval()


@pytest.fixture
def task(tokenizer, translator):
    return replace(find_task("translation"), languages=EN_DE).for_processor(tokenizer, translator.config)


# Parallel text


def test_aligned_files_tables_and_data_sets_say_the_same(tmp_path):
    """Plain, gzipped, TSV with and without header, JSON lines in two shapes, a data set."""
    rows = pairs(5, 3)
    english, german = zip(*rows, strict=True)
    folders = {name: tmp_path / name for name in ("plain", "gzip", "bare", "header", "columns", "nested", "set")}
    for folder in folders.values():
        folder.mkdir()
    write = {"train.en": "\n".join(english) + "\n", "train.de": "\r\n".join(german) + "\r\n"}
    for name, text in write.items():
        (folders["plain"] / name).write_bytes(text.encode())
        (folders["gzip"] / f"{name}.gz").write_bytes(gzip.compress(text.encode()))
    lines = [f"{a}\t{b}" for a, b in rows]
    (folders["bare"] / "train.tsv").write_text("\n".join(lines))
    (folders["header"] / "train.tsv").write_text("\n".join(["de\ten", *(f"{b}\t{a}" for a, b in rows)]))
    (folders["columns"] / "train.jsonl").write_text("\n".join(json.dumps({"en": a, "de": b}) for a, b in rows))
    nested = [json.dumps({"translation": {"en": a, "de": b}}) for a, b in rows]
    (folders["nested"] / "train.jsonl").write_text("\n".join(nested))
    (folders["set"] / "train.jsonl").write_text("\n".join(nested))
    sources = {name: Source(folder) for name, folder in folders.items() if name != "set"}
    sources["set"] = Source(dataset=str(folders["set"]))
    for name, source in sources.items():
        found = read_pairs(source, "train", EN_DE)
        assert list(zip(found.sources, found.targets, strict=True)) == rows, name


def test_a_unicode_line_separator_is_part_of_a_sentence(tmp_path):
    """Only line feeds end lines, or the sides would drift apart."""
    (tmp_path / "train.en").write_text("a\u2028b\nc\n", encoding="utf-8")
    (tmp_path / "train.de").write_text("d\ne\n", encoding="utf-8")
    assert list(read_pairs(Source(tmp_path), "train", EN_DE).sources) == ["a\u2028b", "c"]


@pytest.mark.parametrize(
    ("english", "german", "told"),
    [
        (b"a\nb\nc\n", b"x\ny\n", "has 3 lines.*line 3 has no partner"),
        (b"a\n\nc\n", b"x\ny\nz\n", "line 2: the en side is empty"),
        (b"a\nb\n", b"x\n \n", "line 2: the de side is empty"),
        (b"a\nb\n", b"x\ngr\xfcn\n", "train.de, line 2: not UTF-8"),
        (b"", b"", "has no sentences"),
    ],
)
def test_bad_parallel_text_is_refused_with_its_line(tmp_path, english, german, told):
    """Unequal counts, empty lines, another encoding, nothing at all."""
    (tmp_path / "train.en").write_bytes(english)
    (tmp_path / "train.de").write_bytes(german)
    with pytest.raises(DataError, match=told):
        read_pairs(Source(tmp_path), "train", EN_DE)


def test_a_missing_side_and_unknown_columns_are_named(tmp_path):
    """What was found, what was expected."""
    (tmp_path / "train.en").write_text("a\n")
    with pytest.raises(DataError, match=r"no aligned file ending in \.de"):
        read_pairs(Source(tmp_path), "train", EN_DE)
    with pytest.raises(DataError, match=r"train\.fr and train\.ru"):
        read_pairs(Source(tmp_path), "train", Languages("fr", "ru"))
    (tmp_path / "dev.jsonl").write_text('{"translation": {"en": "a", "de": "b"}}\n{"translation": {"en": "a"}}\n')
    with pytest.raises(DataError, match=r"line 2: found en; expected en and de"):
        read_pairs(Source(tmp_path), "dev", EN_DE)
    (tmp_path / "test.en.gz").write_bytes(b"not gzip")
    (tmp_path / "test.de.gz").write_bytes(b"not gzip")
    with pytest.raises(DataError, match="cannot be read"):
        read_pairs(Source(tmp_path), "test", EN_DE)
    for text in ("en", "en-", "en-en", "en-de-fr"):
        with pytest.raises(DataError, match="expected source and target"):
            Languages.parse(text)


def test_both_sides_come_from_one_name(tmp_path):
    """dev.en beside val.en and val.de: the pair is val's."""
    for name, text in (("dev.en", "x\n"), ("val.en", "a\n"), ("val.de", "b\n")):
        (tmp_path / name).write_text(text)
    found = read_pairs(Source(tmp_path), "dev", EN_DE)
    assert (list(found.sources), list(found.targets)) == (["a"], ["b"])


def test_the_length_filter_drops_long_and_unequal_pairs():
    """At most so many tokens, and no side many times as long as the other."""
    assert within_length([(5, 5), (11, 5), (2, 9), (3, 9), (10, 10)], most=10, ratio=3.0) == [0, 3, 4]


# Subwords


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_subwords_survive_saving_and_give_the_text_back(tmp_path, kind):
    """Through AutoTokenizer, beside a model of either class, also where the text has what training never saw."""
    texts = [text for pair in pairs(300, 0) for text in pair]
    made = train_subwords(texts, 300 if kind == "bpe" else 120, kind)
    for norm in ("pre", "post"):
        folder = tmp_path / norm
        model = new_translator(Shape(layers=1, width=16, heads=2, feed_forward=16, norm=norm, positions=32), made, 0)
        model.save_pretrained(folder)
        made.save_pretrained(folder)
        loaded = AutoTokenizer.from_pretrained(folder)
        for text in texts[:20] + (["Grüße, 你好!"] if kind == "bpe" else []):
            ids = loaded(text)["input_ids"]
            assert ids == made(text)["input_ids"]
            assert ids[-1] == loaded.eos_token_id
            assert loaded.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False).strip() == text


def test_subwords_are_trained_once(tmp_path):
    """A resumed run finds the tokenizer it began with; other text or another size makes another."""
    texts = [text for pair in pairs(100, 0) for text in pair]
    first = subwords_of(tmp_path, texts, 300)
    stamp = (tmp_path / "tokenizer.json").stat().st_mtime_ns
    assert subwords_of(tmp_path, texts, 300).get_vocab() == first.get_vocab()
    assert (tmp_path / "tokenizer.json").stat().st_mtime_ns == stamp
    assert len(subwords_of(tmp_path, texts, 280)) == 280
    with pytest.raises(DataError, match="at least 260"):
        train_subwords(texts, 100)
    with pytest.raises(DataError, match="No kind of subwords"):
        train_subwords(texts, 300, "words")
    with pytest.raises(DataError, match="Raise --vocabulary"):
        train_subwords(["".join(map(chr, range(0x4E00, 0x4F00)))] * 3, 64, "unigram")


# BLEU


HYPOTHESES = [
    "the cat sat on the mat .",
    "a dog runs",
    "two men play football in the park",
    "it is red",
    "hello world !",
]
REFERENCES = ["the cat sat on a mat .", "the dog is running", "two men are playing football in a park", "it is red",
              "hello , world !"]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("bleu", ["-m", "bleu"]),
        ("bleu-lowercase", ["-m", "bleu", "-lc"]),
        ("bleu-intl", ["-m", "bleu", "--tokenize", "intl"]),
        ("bleu-char", ["-m", "bleu", "--tokenize", "char"]),
        ("bleu-tokenised", ["-m", "bleu", "--tokenize", "none", "--force"]),
        ("chrf", ["-m", "chrf"]),
        ("chrf++", ["-m", "chrf", "--chrf-word-order", "2"]),
    ],
)
def test_scores_are_those_of_the_sacrebleu_command(tmp_path, name, flags):
    """On the same files, with the same signature."""
    (tmp_path / "hypotheses").write_text("\n".join(HYPOTHESES) + "\n")
    (tmp_path / "references").write_text("\n".join(REFERENCES) + "\n")
    command = [sys.executable, "-m", "sacrebleu", str(tmp_path / "references"), "-i", str(tmp_path / "hypotheses")]
    done = subprocess.run([*command, *flags, "-w", "6"], capture_output=True, text=True, check=True)
    theirs = json.loads(done.stdout)
    rows = sentence_counts(name, HYPOTHESES, REFERENCES)
    assert corpus_score(name, rows) == pytest.approx(theirs["score"], abs=1e-6)
    assert theirs["signature"] == signature(name)
    assert metrics[name].of(rows) == corpus_score(name, rows)


def test_the_paired_bootstrap_agrees_with_sacrebleus_own():
    """The same difference, intervals that overlap by nine tenths, the same verdict."""
    generator = np.random.default_rng(0)
    references = [" ".join(generator.choice(list("abcdefgh"), 12)) for _ in range(200)]

    def spoilt(share):
        return [" ".join("x" if generator.random() < share else word for word in text.split()) for text in references]

    better, close, worse = spoilt(0.10), spoilt(0.105), spoilt(0.2)
    for other, differs in ((close, False), (worse, True)):
        bleu = sacrebleu.BLEU()
        with redirect_stdout(io.StringIO()):
            test = PairedTest([("a", better), ("b", other)], {"BLEU": bleu}, [references], "bs", n_samples=1000)
            _, found = test()
        first, second = found["BLEU"]
        rows = [sentence_counts("bleu", texts, references) for texts in (better, other)]
        ours = paired_bootstrap(*rows, statistic=metrics["bleu"].of)
        assert ours.difference == pytest.approx(second.score - first.score, abs=1e-9)
        assert (ours.p_value < 0.01) == (second.p_value < 0.01) == differs
        if not differs:  # theirs is one-sided (differences above the mean difference), ours two-sided
            assert ours.p_value / 2 == pytest.approx(second.p_value, abs=0.05)
        mine = bootstrap_interval(rows[1], metrics["bleu"].of)
        assert mine.low == pytest.approx(second.mean - second.ci, abs=0.4 * second.ci)
        assert mine.high == pytest.approx(second.mean + second.ci, abs=0.4 * second.ci)


# Beam search


def test_the_gnmt_penalty_is_the_formula():
    """Division by ((5 + length) / 6) ** alpha."""
    assert 7 ** GnmtPenalty(0.6) == pytest.approx((12 / 6) ** 0.6)
    assert 7 ** GnmtPenalty(0.0) == 1.0


@pytest.mark.parametrize("search", [Search(beams=3, length_penalty=1.0), SEARCHES["voita"]])
def test_generate_ranks_beams_by_the_penalty_of_the_paper(translator, tokenizer, search):
    """The scores that `generate` reports are log-probabilities divided as the search says."""
    inputs = dict(tokenizer(["the dog sees the red ball"], return_tensors="pt"))
    inputs.pop("token_type_ids", None)
    exponent = GnmtPenalty(search.length_penalty) if search.penalty == "gnmt" else search.length_penalty
    with torch.no_grad():
        found = translator.generate(
            **inputs, num_beams=search.beams, num_return_sequences=search.beams, length_penalty=exponent,
            max_new_tokens=6, do_sample=False, return_dict_in_generate=True, output_scores=True,
        )  # fmt: skip
        for tokens, score in zip(found.sequences, found.sequences_scores, strict=True):
            logits = translator(**inputs, decoder_input_ids=tokens[None, :-1]).logits.log_softmax(-1)
            steps = logits[0].gather(1, tokens[1:, None])[:, 0]
            real = tokens[1:] != tokenizer.pad_token_id
            length = int(real.sum())
            divisor = ((5 + length) / 6) ** search.length_penalty if search.penalty == "gnmt" else length
            assert float(steps[real].sum()) / divisor == pytest.approx(float(score), rel=1e-4)


def test_a_search_is_checked():
    """A beam of nothing, a penalty of no paper."""
    with pytest.raises(DataError, match="expected 1"):
        Search(beams=0)
    with pytest.raises(DataError, match="power or gnmt"):
        Search(penalty="none")


# The task


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


# Batches by tokens


def test_token_batches_hold_every_example_once_and_no_more_tokens_than_allowed():
    """In every epoch, in another order, always the same number."""
    lengths = np.random.default_rng(0).integers(2, 30, 500).tolist()
    sampler = TokenBatches(lengths, 120, seed=1)
    epochs = []
    for epoch in (0, 1, 0):
        sampler.set_epoch(epoch)
        batches = list(sampler)
        assert len(batches) == len(sampler)
        assert sorted(row for batch in batches for row in batch) == list(range(500))
        assert all(len(batch) * max(lengths[row] for row in batch) <= 120 for batch in batches)
        epochs.append(batches)
    assert epochs[0] == epochs[2] != epochs[1]
    padded = sum(len(batch) * max(lengths[row] for row in batch) for batch in epochs[0])
    assert sum(lengths) / padded > 0.9
    with pytest.raises(DataError, match="a batch takes 20"):
        TokenBatches(lengths, 20)


def test_token_batches_come_out_even_for_several_processes():
    """Nobody waits for a batch that does not come."""
    sampler = TokenBatches([4] * 10, 8, processes=3)
    assert len(sampler) == len(list(sampler)) == 6


# New models


@pytest.mark.parametrize(("name", "millions"), [("iwslt", 36.7), ("base", 60.6), ("large", 217.4)])
def test_the_papers_models_have_their_shape(name, millions):
    """Layers, heads and parameters at the papers' size, on the meta device."""

    class Vocabulary:
        pad_token_id, bos_token_id, eos_token_id = 0, 1, 2

        def __len__(self):
            return PRESETS[name].shape.vocabulary

    with torch.device("meta"):
        model = new_translator(PRESETS[name].shape, Vocabulary(), 0)
    count = sum(p.numel() for n, p in model.named_parameters() if "embed_positions" not in n)
    assert count / 1e6 == pytest.approx(millions, abs=0.3)
    shape, config = PRESETS[name].shape, model.config
    assert (config.encoder_layers, config.decoder_layers) == (6, 6)
    assert (config.encoder_attention_heads, config.d_model) == (shape.heads, shape.width)


def test_the_recipes_peak_as_the_papers_say():
    """Voita et al.: 4 x 512 ** -0.5 x 16000 ** -0.5; the schedule falls with the inverse square root."""
    recipe = PRESETS["base"].recipe
    assert recipe.learning_rate == pytest.approx(1.4e-3, abs=1e-5)
    assert recipe.batch_tokens * recipe.accumulate == 16000
    from transformers import get_inverse_sqrt_schedule

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=recipe.learning_rate)
    schedule = get_inverse_sqrt_schedule(optimizer, int(recipe.warmup)).lr_lambdas[0]
    for step in (100, 16000, 40000):
        formula = 4 * 512**-0.5 * min(step**-0.5, step * 16000**-1.5)
        assert recipe.learning_rate * schedule(step) == pytest.approx(formula, rel=1e-6)


def test_a_shape_that_does_not_divide_is_refused():
    """Width among heads; norms of no paper."""
    with pytest.raises(DataError, match="does not divide"):
        Shape(width=100, heads=8)
    with pytest.raises(DataError, match="pre or post"):
        Shape(norm="middle")


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_new_models_are_ordinary_checkpoints(tmp_path, tokenizer, norm):
    """Saved, loaded by the Auto class, they say the same."""
    model = new_translator(Shape(layers=1, width=16, heads=2, feed_forward=16, norm=norm, positions=32), tokenizer, 3)
    model.eval().save_pretrained(tmp_path)
    inputs = {"input_ids": torch.tensor([[5, 6, 2]]), "decoder_input_ids": torch.tensor([[1, 7]])}
    with torch.no_grad():
        again = AutoModelForSeq2SeqLM.from_pretrained(tmp_path).eval()(**inputs).logits
        assert torch.equal(again, model(**inputs).logits)
    assert math.isfinite(float(again.sum()))
