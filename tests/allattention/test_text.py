"""Running text: parts, symbols, streams; bad input."""

from __future__ import annotations

import gzip
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

import headprune as hp
from headprune.tasks.sources import Source
from headprune.tasks.text.corpus import read_part
from headprune.tasks.text.streams import Segments, StreamBatches, StreamExamples, StreamRows
from headprune.tasks.text.symbols import make_symbols, numbered
from headprune.tasks.text.task import StreamTask, _collate

LINES = "the cat saw the dog .\nthe dog ran\n\nthe cat ran .\n"


@pytest.mark.parametrize("name", ["valid.txt", "dev.txt.gz", "wiki.valid.tokens", "validation"])
def test_a_part_is_found_under_its_usual_names(name, tmp_path):
    """WikiText's own names among them, packed or not."""
    opener = gzip.open if name.endswith(".gz") else open
    with opener(tmp_path / name, "wt", encoding="utf-8") as file:
        file.write(LINES)
    assert read_part(Source(folder=tmp_path), "dev", "words") == LINES


def test_one_file_is_cut_90_5_5(tmp_path):
    """Nothing twice, nothing lost; words are cut at the ends of lines."""
    path = tmp_path / "text8"
    path.write_text("".join(f"line {number}\n" for number in range(1000)))
    for unit in ("characters", "words", "bytes"):
        parts = [read_part(Source(folder=path), part, unit) for part in ("train", "dev", "test")]
        assert "".join(parts) == path.read_text()
        assert len(parts[0]) / len(path.read_text()) == pytest.approx(0.9, abs=0.01)
        assert unit != "words" or all(part.endswith("\n") for part in parts)
    with pytest.raises(hp.HeadpruneError, match="has no part 'extra'"):
        read_part(Source(folder=path), "extra", "characters")


def test_words_of_one_long_line_are_cut_between_words(tmp_path):
    """Text8 has no line breaks at all."""
    path = tmp_path / "text8"
    path.write_text("some words " * 2000)
    parts = [read_part(Source(folder=path), part, "words") for part in ("train", "dev", "test")]
    assert "".join(parts) == path.read_text()
    assert [len(part) for part in parts] == pytest.approx([19800, 1100, 1100], abs=12)


def test_tokenizers_read_what_people_type():
    """Letters in lower case; the end of a line as training has it."""
    letters = make_symbols("hello world", "letters")
    assert letters.decode(letters("Hello, World")["input_ids"]) == "hello world"
    words = make_symbols(LINES, "words")
    assert words(LINES)["input_ids"] == numbered(LINES, words, "here").tolist()


def test_letters_are_the_27_symbols_of_text8(tmp_path):
    """Lower case; whatever is not a letter is one space; a text that is so already stays as it is."""
    (tmp_path / "train.txt").write_text("Héllo,  World: 3 dogs!\n")
    assert read_part(Source(folder=tmp_path), "train", "letters") == "h llo world dogs "
    (tmp_path / "train.txt").write_text(" anarchism originated as a term of abuse")
    assert read_part(Source(folder=tmp_path), "train", "letters") == " anarchism originated as a term of abuse"


def test_words_are_numbered_by_frequency_and_every_line_ends():
    """The vocabulary has the end of a line first; an empty line is an end alone."""
    tokenizer = make_symbols(LINES, "words")
    vocabulary = tokenizer.get_vocab()
    assert sorted(vocabulary, key=vocabulary.get) == ["<eos>", "the", ".", "cat", "dog", "ran", "saw"]
    assert numbered(LINES, tokenizer, "here").tolist() == [1, 3, 6, 1, 4, 2, 0, 1, 4, 5, 0, 0, 1, 3, 5, 2, 0]


@pytest.mark.parametrize("unit", ["words", "characters", "letters", "bytes"])
def test_the_quick_numbers_are_the_tokenizers_own(unit, tmp_path):
    """Also after saving and loading; and decoding gives the text back."""
    text = "the cat saw the dog" if unit == "words" else "the cät\n saw \tit"
    text = "the c t saw it" if unit == "letters" else text
    raw = text.encode().decode("latin-1") if unit == "bytes" else text
    make_symbols(raw, unit).save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    found = numbered(raw, tokenizer, "here").tolist()
    assert found[: -1 if unit == "words" else None] == tokenizer(text)["input_ids"]
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


@pytest.mark.parametrize("unit", ["words", "characters"])
def test_an_unseen_symbol_is_named_with_its_line(unit):
    """Unless the vocabulary was cut: then it is <unk>, and so is what was cut off."""
    other = "the dog\nthe fox\n"
    told = r"line 2: '(fox|x)' is not among the \d+ symbols.*--vocabulary"
    with pytest.raises(hp.HeadpruneError, match=told):
        numbered(other, make_symbols("the cat saw the dog\nthe of ran\n", unit), "The test part")
    roomy = make_symbols("the cat saw the dog\nthe of ran\n", unit, 100)
    assert roomy.unk_token_id in numbered(other, roomy, "here")
    cut = make_symbols(LINES, unit, 5)
    assert len(cut) == 5
    assert int(numbered(other, cut, "here").max()) < 5
    assert cut.unk_token_id in numbered(other, cut, "here")


def test_text_that_is_not_utf8_is_refused_with_its_line(tmp_path):
    """And can be read by bytes."""
    (tmp_path / "train.txt").write_bytes(b"one\ntwo \xff\n")
    with pytest.raises(hp.HeadpruneError, match="line 2: not UTF-8"):
        read_part(Source(folder=tmp_path), "train", "characters")
    assert len(read_part(Source(folder=tmp_path), "train", "bytes")) == 10


def test_a_text_shorter_than_a_segment_is_refused(tmp_path):
    """For reading and for training."""
    (tmp_path / "dev.txt").write_text("abcabc")
    task, tokenizer = StreamTask(), make_symbols("abc", "characters")
    with pytest.raises(hp.HeadpruneError, match="has 6 tokens: shorter than one segment of 6"):
        task.load(Source(folder=tmp_path), "dev", tokenizer, 6)
    examples = task.load(Source(folder=tmp_path), "dev", tokenizer, 5)
    with pytest.raises(hp.HeadpruneError, match="too few for 4 streams with a segment of 5 each, which need 24"):
        StreamBatches(examples.segments, 4)


def test_other_models_and_tokenizers_are_refused():
    """A memory and symbols are needed."""
    with pytest.raises(hp.HeadpruneError, match="causal-lm"):
        StreamTask().for_processor(object(), None)
    from transformers import GPT2Config

    with pytest.raises(hp.HeadpruneError, match="has no memory"):
        StreamTask().for_processor(make_symbols("ab", "characters"), GPT2Config())
    with pytest.raises(hp.HeadpruneError, match="The model has 27 symbols, its tokenizer 2"):
        StreamTask().for_processor(make_symbols("ab", "characters"), hp.AllAttentionConfig(vocab_size=27))


def examples_of(length: int, segment: int) -> StreamExamples:
    return StreamExamples(Segments(np.arange(length, dtype=np.int32), segment), _collate)


@settings(max_examples=60, deadline=None)
@given(length=st.integers(12, 200), segment=st.integers(1, 9), streams=st.integers(1, 6))
def test_every_token_is_a_target_once(length, segment, streams):
    """But for the first of each stream and what does not fill the streams evenly; segments follow one another."""
    examples = examples_of(length, segment)
    ends: dict[int, int] = {}
    targets = []
    for batch in examples.batches(streams):
        for (stream, start), row in zip(batch["_place"], batch["labels"].tolist(), strict=True):
            assert start == ends.get(stream, 0)
            ends[stream] = start + len(row) - 1
            assert row[0] == -100
            targets += row[1:]
    each = length // len(ends)
    wanted = [s * each + place for s in range(len(ends)) for place in range(1, each)]
    assert sorted(targets) == wanted


@settings(max_examples=40, deadline=None)
@given(groups=st.integers(1, 3), batch=st.integers(1, 4), epoch=st.integers(0, 3))
def test_training_reads_every_stream_in_order_from_a_place_that_changes(groups, batch, epoch):
    """A row goes on where it stopped, around the end of its stream; groups have streams of their own."""
    segments = Segments(np.arange(300, dtype=np.int32), 5)
    sampler = StreamBatches(segments, batch, groups=groups, seed=3)
    sampler.set_epoch(epoch)
    rows = StreamRows(segments.tokens, sampler)
    batches = list(sampler)
    assert len(batches) == len(sampler)
    each = 300 // (batch * groups)
    last: dict[tuple[int, int], int] = {}
    for number, names in enumerate(batches):
        for place, name in enumerate(names):
            window = rows[name]["input_ids"].tolist()
            stream = (number % groups) * batch + place
            assert all(stream * each <= token < (stream + 1) * each for token in window)
            assert all((b - a) % each == 1 % each for a, b in itertools.pairwise(window))
            assert last.get((number % groups, place), window[0]) == window[0]
            last[(number % groups, place)] = window[-1]


def test_epochs_begin_elsewhere_and_repeat_for_the_same_seed():
    """A random shift for every stream and epoch."""
    segments = Segments(np.arange(400, dtype=np.int32), 5)
    sampler = StreamBatches(segments, 4, seed=1)
    first = list(sampler)
    assert first == list(sampler)
    sampler.set_epoch(1)
    assert [row[1] for row in first[0]] != [row[1] for row in next(iter(sampler))]


def test_a_sample_is_the_beginning_and_a_half_stays_a_text():
    """Nothing is torn apart that follows one another."""
    examples = examples_of(101, 5)
    assert len(examples) == 20
    begun = list(examples.sample(4, seed=7).batches(1))
    assert [batch["_place"][0][1] for batch in begun] == [0, 5, 10, 15]
    half = list(examples.subset(range(10, 20)).batches(1))
    assert [int(batch["labels"][0, 1]) for batch in half] == [51, 56, 61, 66, 71, 76, 81, 86, 91, 96]
    apart = examples.subset([3, 9])
    assert len(apart) == 2
