"""A folder of results, made once by real commands."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from filelock import FileLock
from typer.testing import CliRunner

from headprune.cli.app import app

SENTENCE = "the cat sat on a mat and the dog ran to it while birds sang over old trees in spring"
TOY = Path(__file__).parent / "toy.toml"


def write_text_data(folder):
    folder.mkdir(parents=True)
    chosen = random.Random(0)
    for part, lines in (("train", 150), ("dev", 20), ("test", 20)):
        text = "\n".join(" ".join(chosen.choice(SENTENCE.split()) for _ in range(8)) for _ in range(lines))
        (folder / f"{part}.txt").write_text(text)
    return folder


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """Results of the toy preset; several test processes share them."""
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if base.name.startswith("popen-") else base) / "toy-runs"
    with FileLock(f"{shared}.lock"):
        if not shared.is_dir():
            data = write_text_data(shared.with_name("toy-report-text"))
            words = ["run", str(TOY), "--input", f"text={data}", "--out", str(shared)]
            done = CliRunner().invoke(app, words, catch_exceptions=False)
            assert done.exit_code == 0, done.output
    return shared
