"""Shared by all tests: one thread per worker, no network, models that are trained once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["OMP_NUM_THREADS"] = "1"  # two workers on two cores; also for the processes that tests start

import pytest
import torch
import transformers
from filelock import FileLock
from hypothesis import settings

import headprune as hp
from tests.programs import Programs

torch.set_num_threads(1)
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

settings.register_profile("headprune", deadline=None, max_examples=60, derandomize=True)
settings.load_profile("headprune")

FEW_REVIEWS = ("demo", "--train", 32, "--dev", 24, "--epochs", 1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes long is begun first, half of it by each of two workers: who is done takes over short tests of the
    other, and nobody waits for the last long one."""
    longest = [item for item in items if item.get_closest_marker("long")]
    others = [item for item in items if not item.get_closest_marker("long")]
    half = len(others) // 2
    items[:] = [*longest[::2], *others[:half], *longest[1::2], *others[half:]]


Made = Callable[[str, Callable[[Path], object]], Path]


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A folder by name, filled by the first process of the test run that asks for it; others read it."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if base.name.startswith("popen-") else base

    def made(name: str, fill: Callable[[Path], object]) -> Path:
        folder, done = shared / name, shared / f"{name}.done"
        with FileLock(shared / f"{name}.lock"):
            if not done.exists():
                fill(folder)
                done.touch()
        return folder

    return made


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    """Programs in processes of their own, without the seconds that imports take."""
    running = Programs(tmp_path_factory.mktemp("programs"))
    yield running
    running.close()


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The folder of all-MiniLM-L6-v2, a real trained model."""
    return hp.demo_model()


@pytest.fixture(scope="session")
def demonstrated(made_once: Made, programs: Programs) -> Path:
    """The folder in which `headprune demo` ran, on few reviews, with what it printed in `told.txt`; to be read."""

    def fill(folder: Path) -> None:
        folder.mkdir()
        done = programs.run("-m", "headprune", *FEW_REVIEWS, cwd=folder)
        assert done.returncode == 0, done.stderr
        (folder / "told.txt").write_text(done.stdout)

    return made_once("demo", fill)


@pytest.fixture(scope="session")
def trained(made_once: Made) -> Path:
    """A toy classifier (`tuned`) of `model` on `data`, and its `scores`; to be read, not written to."""
    from tests.command import answered, call
    from tests.tasks.toy import write_data, write_model

    def fill(root: Path) -> None:
        data, model = write_data(root / "data"), write_model(root / "model")
        recipe = ("--epochs", 6, "--lr", 3e-3, "--batch-size", 20, "--seed", 0)
        told = answered("finetune", model, "--data-dir", data, *recipe, "--out", root / "tuned")
        assert told["dev"]["score"] > 0.9
        call("score", root / "tuned", "--data-dir", data, "--out", root / "scores")

    return made_once("toy-classifier", fill)


@pytest.fixture(scope="session")
def pair_tokenizer() -> transformers.PreTrainedTokenizerBase:
    """Subwords of the toy language pair."""
    from headprune.tasks.translation.subwords import train_subwords
    from tests.tasks.parallel import pairs

    return train_subwords([text for pair in pairs(300, 0) for text in pair], 320)


@pytest.fixture(scope="session")
def pair_folder(made_once: Made) -> Path:
    """A few sentences of the toy language pair."""
    from tests.tasks.parallel import write_pairs

    return made_once("toy-pairs", lambda folder: write_pairs(folder, train=60, dev=6, test=6))


@pytest.fixture(scope="session")
def text_folder(made_once: Made) -> Path:
    """A toy text in three parts."""
    from tests.tasks.text.toy import babble

    def fill(folder: Path) -> None:
        folder.mkdir()
        for part, length in (("train", 1500), ("dev", 200), ("test", 200)):
            (folder / f"{part}.txt").write_text(babble(length, seed=length))

    return made_once("toy-text", fill)
