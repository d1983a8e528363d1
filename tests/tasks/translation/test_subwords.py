"""Subwords of a language pair."""

from __future__ import annotations

import pytest
from transformers import AutoTokenizer

from headprune.errors import DataError
from headprune.tasks.translation.presets import Shape, new_translator
from headprune.tasks.translation.subwords import subwords_of, train_subwords
from tests.tasks.parallel import pairs


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
