"""How far a newcomer has to read: the files of headprune in which a function runs, for four common walks through it.

    python tools/walks.py              a table
    python tools/walks.py --files      with the files of each walk, in the order in which they are entered
    python tools/walks.py --json       the same as data

Each walk is taken in a process of its own. Another version is counted with its source first on the PYTHONPATH.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

WALKS: dict[str, Callable[[Path], None]] = {}
LIMITS = {"prune": 30, "best": 35}  # files at most, of the walks that have a limit
PRESET = """
name = "walk"
study = "none"
line = "none"
what = "a model scored and pruned"

[small]
inputs = { model = "a classifier", data = "its data" }
seeds = [1]

[[small.steps]]
name = "scores"
command = "score"
arguments = ["{model}"]
options = { task = "sst2", data-dir = "{data}", batch-size = 8 }

[[small.values]]
name = "the first head"
step = "scores"
path = "scores/encoder.0/0"
"""


def walk(name: str) -> Callable[[Callable[[Path], None]], Callable[[Path], None]]:
    def add(function: Callable[[Path], None]) -> Callable[[Path], None]:
        WALKS[name] = function
        return function

    return add


@walk("prune")
def _prune(folder: Path) -> None:
    """find_heads, score, select, prune_, save_pretrained, from_pretrained"""
    from transformers import AutoModelForSequenceClassification

    import headprune as hp

    model, batches = _classifier(), _batches()
    heads = hp.find_heads(model)
    scores = hp.score(model, batches, method="sensitivity")
    hp.prune_(model, hp.select(scores, heads, prune=0.5))
    model.save_pretrained(folder / "small")
    AutoModelForSequenceClassification.from_pretrained(folder / "small")


@walk("best")
def _best(folder: Path) -> None:
    """prune --method best --speedup 1.2"""
    model, data = _written(folder)
    _headprune("prune", model, "--task", "sst2", "--data-dir", data, "--method", "best", "--speedup", "1.2",
               "--length", 128, "--out", folder / "small")  # fmt: skip


@walk("run")
def _run(folder: Path) -> None:
    """run PRESET --runner inline"""
    model, data = _written(folder)
    (folder / "walk.toml").write_text(PRESET)
    _headprune("run", folder / "walk.toml", "--runner", "inline", "--input", f"model={model}", "--input",
               f"data={data}", "--out", folder / "runs")  # fmt: skip


@walk("gates")
def _gates(folder: Path) -> None:
    """attach_gates, GateTrainer.train, remove_"""
    from transformers import TrainingArguments

    import headprune as hp

    model = _classifier()
    gates = hp.attach_gates(model, hp.HardConcrete)
    rows = [{name: value[0] for name, value in batch.items()} for batch in _batches(rows=1, count=8)]
    arguments = TrainingArguments(
        output_dir=str(folder), max_steps=4, report_to=[], use_cpu=True, disable_tqdm=True, save_strategy="no"
    )
    hp.GateTrainer(model=model, args=arguments, train_dataset=rows, objective=hp.Objective(target=16)).train()
    gates.remove_(keep=16)


def _classifier() -> Any:
    """Small, with more attention than anything else, so that fewer heads are quicker."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    torch.set_num_threads(1)
    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 16, "intermediate_size": 32}
    return BertForSequenceClassification(BertConfig(vocab_size=64, max_position_embeddings=130, **sizes)).eval()


def _batches(rows: int = 8, count: int = 4) -> list[dict[str, Any]]:
    import torch

    ids = torch.randint(5, 64, (count, rows, 16), generator=torch.Generator().manual_seed(0))
    return [{"input_ids": batch, "labels": torch.arange(rows) % 2} for batch in ids]


def _written(folder: Path) -> tuple[Path, Path]:
    """The classifier with a tokenizer, and sentences with labels."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["[PAD]", "[UNK]", *(f"w{number}" for number in range(62))]
    raw = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    _classifier().save_pretrained(folder / "model")
    PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(
        folder / "model"
    )
    chosen = random.Random(0)
    (folder / "data" / "sst2").mkdir(parents=True)
    for part in ("train", "dev"):
        rows = [f"{' '.join(chosen.choices(words[2:], k=8))}\t{number % 2}\n" for number in range(32)]
        (folder / "data" / "sst2" / f"{part}.tsv").write_text("".join(rows))
    return folder / "model", folder / "data"


def _headprune(*words: object) -> None:
    from headprune.cli import main

    sys.argv = ["headprune", *map(str, words)]
    try:
        main()
    except SystemExit as ended:
        if ended.code:
            raise


def entered(name: str) -> list[str]:
    """The files of headprune in which a function runs on a walk, each when it is first entered.

    What runs while a module is imported (decorators that register a name) is not read on the way, and not counted.
    """
    root = _package()
    found: dict[str, None] = {}
    seen: set[CodeType] = set()
    importing = 0

    def called(frame: FrameType, event: str, _: object) -> None:
        nonlocal importing
        code = frame.f_code
        if code.co_name == "<module>":
            importing += {"call": 1, "return": -1}.get(event, 0)
        elif event == "call" and not importing and code not in seen:
            seen.add(code)
            if code.co_filename.startswith(root):
                found.setdefault(code.co_filename.removeprefix(root))

    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        threading.setprofile(called)
        sys.setprofile(called)
        try:
            WALKS[name](Path(folder))
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]
    return list(found)


def _package() -> str:
    from importlib.util import find_spec

    spec = find_spec("headprune")
    assert spec is not None
    assert spec.origin is not None
    return str(Path(spec.origin).parent) + os.sep


def counted(names: list[str]) -> Iterator[tuple[str, list[str]]]:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    for name in names:
        command = [sys.executable, __file__, "--alone", name]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        if done.returncode:
            sys.exit(f"The walk '{name}' ended with an error:\n{done.stderr[-2000:]}")
        yield name, json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("walks", nargs="*", help=f"of {', '.join(WALKS)}; default: all")
    parser.add_argument("--files", action="store_true", help="name the files, too")
    parser.add_argument("--json", action="store_true", help="print JSON for programs instead of text for people")
    parser.add_argument("--alone", choices=WALKS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.alone:
        print(json.dumps(entered(given.alone)))
        return
    found = dict(counted(given.walks or list(WALKS)))
    if given.json:
        print(json.dumps(found, indent=1))
        return
    print(f"{'walk':8}{'files':>6}{'at most':>9}")
    for name, files in found.items():
        print(f"{name:8}{len(files):6}{LIMITS.get(name, ''):>9}  {(WALKS[name].__doc__ or '').strip()}")
        if given.files:
            print("".join(f"{'':25}{file}\n" for file in files), end="")


if __name__ == "__main__":
    main()
