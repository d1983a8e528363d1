"""`--out`: what a command may write into, and what must be told first. Every command that has the option asks here.

And what a model folder holds besides config and weights: tokenizer, card, and what commands left there.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from headprune import files, limits
from headprune.checkpoint.exchange import CONFIG, NOTE, exchange, finish_interrupted
from headprune.checkpoint.pretrained import stale
from headprune.errors import CheckpointError, FileFormatError
from headprune.files import check_inside, open_regular
from headprune.jobs.options.base import option_fields

# What a model folder holds besides the files that saving the pruned model writes anew.
TRAINED = ("finetune.json", "train-mt.json", "train-lm.json", "training_args.bin", "trainer_state.json")
RESULT = "prune.json"
RESULTS = (*TRAINED, "evaluation.json", "shrink.json", RESULT)
CARD = "README.md"
TEXTS = (".json", ".jsonl", ".txt", ".md", ".model", ".jinja", ".yaml", ".yml", ".csv", ".tsv")
WEIGHTS = (".safetensors", ".bin", ".gguf", ".onnx", ".h5", ".msgpack", ".ot", ".pt", ".pth", ".index.json")
UNFINISHED = ("run.json", "subwords", "symbols")  # in OUT/checkpoints, of a training of ours
# What commands leave in a folder, by which it is known as one of ours.
MADE = {
    *RESULTS, "ablation.json", "curve.json", "demo.json", "diff.json", "functions.json", "gates.json", "heads.json",
    "run.json", "scores.json", "settings.json", "trials", "unfinished", "verdict.json",
}  # fmt: skip
# Names that others give to their files as well: what ours have in them.
COMMON = {
    "heads.json": "headprune.heads", "run.json": '"runs"', "scores.json": "headprune.scores",
    "settings.json": '"epochs"', "verdict.json": "headprune.verdict",
}  # fmt: skip
TRIAL = re.compile(r"[0-9a-f]{16}\.json")
BEGUN = {"lock", "trials", "work"}  # all that a run has that was killed before its first result
WITHOUT_RESULT = ("export",)  # commands that leave a model, and no COMMAND.json beside it
NOT_ASKED = ("out", "force", "device", "picture")  # no part of what a model is


@dataclass(frozen=True)
class OutFolder:
    """A folder that may be written into by this command."""

    path: Path
    command: str
    key: str
    is_finished: bool = False  # by the same command, asked the same of the same inputs

    def note(self, folder: Path) -> None:
        """Put down who made a model and of what, among its files."""
        files.write_text(folder / NOTE, files.dump("folder", {"command": self.command, "key": self.key}))

    def kept(self, result: str) -> Any:
        """The stored result of the run that was finished."""
        try:
            return files.loads(files.read_text(self.path / result, "result"))
        except ValueError as error:
            raise FileFormatError(f"'{self.path / result}' is damaged ({error}). --force makes it anew.") from error


def open_out(command: str, options: Any, *, holds_model: bool = False, beside: bool = False) -> OutFolder:
    """The folder of `options.out`, if this command may write there; `holds_model` if it puts a model there, and
    `beside` if that may be the folder of the model itself."""
    folder: Path = options.out
    check_writable(folder, getattr(options, "model", None) if holds_model and not beside else None)
    finish_interrupted(folder)
    found = OutFolder(folder, command, _key(command, options) if holds_model else "")
    there = sorted(path.name for path in folder.iterdir() if not path.name.startswith(".")) if folder.is_dir() else []
    if options.force or not there:
        return found
    maker, key = _noted(folder)
    if holds_model and (CONFIG in there or any(name.endswith(WEIGHTS) for name in there)):
        if (maker, key) == (command, found.key):
            has_result = f"{command}.json" in there or command in WITHOUT_RESULT
            return OutFolder(folder, command, key, is_finished=has_result)
        by = f"a model that `headprune {maker}` made of other inputs or settings" if maker else "another model"
        raise CheckpointError(
            f"'{folder}' holds {by} ({_some(there)}), which would be replaced. Choose another --out, or say --force."
        )
    if not _is_ours(folder, there):
        raise CheckpointError(
            f"'{folder}' holds what headprune did not make: {_some(there)}. Choose another --out, or say --force to "
            "write beside it."
        )
    return found


def _is_ours(folder: Path, there: list[str]) -> bool:
    """Whether a command was at work in the folder, or in one in it, as a study with several models has them; also one
    that was killed before it had written anything."""
    filled = [name for name in there if not (folder / name).is_dir() or any((folder / name).iterdir())]
    if any(_is_made(folder / name) for name in MADE.intersection(filled)) or BEGUN.issuperset(filled):
        return all(name != "trials" or _is_made(folder / name) for name in filled)
    return any(_noted(place)[0] or _is_unfinished(place) for place in (folder, *(folder / name for name in filled)))


def _is_made(path: Path) -> bool:
    """Whether a file with a name that commands give is one of theirs."""
    try:
        if path.name == "trials":
            return all(TRIAL.fullmatch(inner.name) or inner.name.startswith(".") for inner in path.iterdir())
        return path.name not in COMMON or COMMON[path.name] in files.bounded_text(path)
    except (OSError, UnicodeDecodeError):
        return False


def check_room(folder: Path, size: int, what: str) -> None:
    """Better told before hours of work than after them."""
    near = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    free = shutil.disk_usage(near).free
    if free < size:
        raise CheckpointError(
            f"The disk of '{folder}' has {free / 1e6:,.0f} MB left; {what} takes {size / 1e6:,.0f} MB. Free some, or "
            "choose another --out."
        )


def _is_unfinished(folder: Path) -> bool:
    """Whether a training of ours, or one of a sweep over gates, was begun there."""
    return (folder / "gates.json").is_file() or any((folder / "checkpoints" / name).exists() for name in UNFINISHED)


def _some(names: list[str], most: int = 4) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _noted(folder: Path) -> tuple[str, str]:
    try:
        content = files.load("folder", files.bounded_text(folder / NOTE))
    except (OSError, ValueError):
        return "", ""
    return str(content.get("command", ""))[:40], str(content.get("key", ""))


def _key(command: str, options: object) -> str:
    """The same for the same request about the same files."""
    asked: dict[str, Any] = {"command": command}
    for field in option_fields(type(options)):
        if field.name not in NOT_ASKED:
            value = getattr(options if field.group is None else getattr(options, field.group), field.name)
            values = value if isinstance(value, list) else [value]
            asked[field.name] = [[str(one), _state(one)] for one in values]
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:16]


def _state(value: object) -> list[list[object]]:
    """If a value names a file or a folder: sizes and dates of what is there, by which a change is seen."""
    if not isinstance(value, str | Path) or not str(value):
        return []
    try:
        place = Path(value)
        inside = sorted(place.iterdir()) if place.is_dir() else [place]
        kept = [path for path in inside if path.is_file() and not path.name.startswith(".")]
        return [[path.name, path.stat().st_size, path.stat().st_mtime_ns] for path in kept if path.name not in RESULTS]
    except (OSError, ValueError):  # a text that can be no path
        return []


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


def check_writable(folder: Path, source: str | None = None) -> Path:
    """Find out before the work, not after it. What took training to make is not replaced by what is made of it."""
    try:
        existing = next(place for place in (folder, *folder.parents) if place.exists())
        meant = folder.resolve()
    except (OSError, RuntimeError) as error:  # a link in a circle, a name that is too long
        raise CheckpointError(f"'{str(folder)[:200]}' cannot be written: {error}. Choose another --out.") from error
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise CheckpointError(
            f"'{folder}' cannot be written: '{existing}' is not a writable folder. Choose another --out."
        )
    if source is not None and Path(source).is_dir() and meant == Path(source).resolve():
        raise CheckpointError(f"--out '{folder}' is the model itself, which would be lost. Choose another --out.")
    return folder
