"""Parallel text."""

from __future__ import annotations

import gzip
import json

import pytest

from headprune.errors import DataError
from headprune.tasks import Source
from headprune.tasks.translation.pairs import Languages, read_pairs, within_length
from tests.tasks.parallel import EN_DE, pairs


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
