"""Letters, words and bytes as numbers."""

from __future__ import annotations

import pytest
from transformers import AutoTokenizer

import headprune as hp
from headprune.tasks.tables import Source
from headprune.tasks.text.corpus import read_part
from headprune.tasks.text.symbols import make_symbols, numbered

LINES = "the cat saw the dog .\nthe dog ran\n\nthe cat ran .\n"


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
