"""Text in files."""

from __future__ import annotations

import gzip

import pytest

import headprune as hp
from headprune.tasks.tables import Source
from headprune.tasks.text.corpus import read_part

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
