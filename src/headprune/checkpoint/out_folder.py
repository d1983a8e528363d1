"""`--out`: what a command may write into, and what must be told first. Every command that has the option asks here."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headprune import files
from headprune.checkpoint.companions import RESULTS, WEIGHTS
from headprune.checkpoint.exchange import CONFIG, finish_interrupted
from headprune.checkpoint.load_model import check_writable
from headprune.errors import CheckpointError, FileFormatError
from headprune.jobs.options.base import option_fields

NOTE = ".headprune.json"  # in a model folder: which command made it, and a key of what it was asked
UNFINISHED = ("run.json", "subwords", "symbols")  # in OUT/checkpoints, of a training of ours
# What commands leave in a folder, by which it is known as one of ours.
MADE = {
    *RESULTS, "ablation.json", "curve.json", "demo.json", "diff.json", "functions.json", "gates.json", "heads.json",
    "run.json", "scores.json", "settings.json", "trials", "unfinished", "verdict.json",
}  # fmt: skip
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
    if MADE.intersection(filled) or BEGUN.issuperset(filled):
        return True
    return any(_noted(place)[0] or _is_unfinished(place) for place in (folder, *(folder / name for name in filled)))


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


def _key(command: str, options: Any) -> str:
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
