"""What a model folder holds besides config and weights: tokenizer, card, and what commands left there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from headprune import limits
from headprune.checkpoint.exchange import exchange
from headprune.checkpoint.save import stale
from headprune.errors import CheckpointError
from headprune.files import check_inside, open_regular

# What a model folder holds besides the files that saving the pruned model writes anew.
TRAINED = ("finetune.json", "train-mt.json", "train-lm.json", "training_args.bin", "trainer_state.json")
RESULT = "prune.json"
RESULTS = (*TRAINED, "evaluation.json", "shrink.json", RESULT)
CARD = "README.md"
TEXTS = (".json", ".jsonl", ".txt", ".md", ".model", ".jinja", ".yaml", ".yml", ".csv", ".tsv")
WEIGHTS = (".safetensors", ".bin", ".gguf", ".onnx", ".h5", ".msgpack", ".ot", ".pt", ".pth", ".index.json")


def copy_companions(source: Path, target: Path, out: Path | None = None) -> None:
    """Tokenizer and other files of a local model folder, so that the pruned folder is as complete as the first. `out`
    is where they end up, if that is elsewhere."""
    if not source.is_dir():
        _save_tokenizer(str(source), target)
        return
    for path in _companions(source):
        copied = target / path.relative_to(source)
        if copied.exists() or path.resolve().is_relative_to((out or target).resolve()):
            continue  # the target lies inside the source
        copied.parent.mkdir(parents=True, exist_ok=True)
        _copy(path, copied, source)


def check_companions(source: Path) -> None:
    """Before the work: everything that will be copied beside the new model may be."""
    for path in (*_companions(source), source / CARD) if source.is_dir() else ():
        if path.is_symlink() or path.exists():
            _opened(path, source).close()


def _companions(source: Path) -> list[Path]:
    """What lies beside the weights and is neither theirs nor a result; never more than a folder can mean to have."""
    found: list[Path] = []
    for folder, inner, names in _walk(source):
        inner[:] = [name for name in inner if not name.startswith(".") and (folder, name) != (source, "checkpoints")]
        for name in names:
            weights = folder == source and name.endswith(WEIGHTS)
            if not weights and not name.startswith(".") and not name.endswith(".py") and name not in RESULTS:
                found.append(folder / name)
        if len(found) > limits.COMPANIONS:
            raise CheckpointError(
                f"'{source}' has more than {limits.COMPANIONS} files beside its weights: is it the folder of a model?"
            )
    return sorted(found)


def _walk(source: Path) -> Iterator[tuple[Path, list[str], list[str]]]:
    """Folders with what is in them; links to folders are not followed."""
    for folder, inner, names in os.walk(source):
        yield Path(folder), inner, names


def _opened(path: Path, source: Path) -> BinaryIO:
    """A file of a model folder, which may come from anybody: no link out of it (but into its own hub cache), no device,
    no pipe, and of a size that such files have."""
    whole = source.resolve()
    cache = [folder.parent / "blobs" for folder in (whole, *whole.parents) if folder.name == "snapshots"]
    text = path.suffix in TEXTS or not path.suffix
    try:
        check_inside(path, whole, *cache)
        return open_regular(path, limits.TEXT_BYTES if text else limits.COMPANION_BYTES)
    except OSError as error:
        raise CheckpointError(
            f"'{path.relative_to(source)}' cannot be copied beside the new model: {error}. Remove it from '{source}', "
            "or put an ordinary file in its place."
        ) from error


def _copy(path: Path, target: Path, source: Path) -> None:
    with _opened(path, source) as file, target.open("wb") as copied:
        shutil.copyfileobj(file, copied)


@contextmanager
def new_model_folder(out: Path, source: Path | None = None) -> Iterator[Path]:
    """Where a command puts a model and everything that belongs to it. When the block ends, the companions of its
    `source` have come along, and all of it is exchanged for the model that is in `out`."""

    def goes(names: list[str]) -> list[str]:
        return [*stale(names, out), *(name for name in RESULTS if (out / name).is_file())]

    with exchange(out, goes) as new:
        homes = [folder for folder in (out, source) if folder is not None and (folder / CARD).is_file()]
        if homes:
            _copy(homes[0] / CARD, new / CARD, homes[0])  # saving adds what was removed to it
        yield new
        if source is not None:
            copy_companions(source, new, out)


def _save_tokenizer(name: str, target: Path) -> None:
    from transformers import AutoTokenizer

    try:
        AutoTokenizer.from_pretrained(name).save_pretrained(target)
    except (OSError, ValueError, KeyError):
        return  # vision and audio models have none
