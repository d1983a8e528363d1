"""Files: JSON with a kind and a schema version, written whole or not at all; long work in parts that resumes."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from headprune import limits
from headprune.errors import FileFormatError, HeadpruneError

SCHEMA = 1


def labelled(kind: str, content: Mapping[str, object]) -> dict[str, Any]:
    """The content of a file with what says how to read it."""
    return {"kind": f"headprune.{kind}", "schema": SCHEMA, **content}


def dump(kind: str, content: Mapping[str, object]) -> str:
    return json.dumps(labelled(kind, content), indent=1, allow_nan=False)


def loads(text: str) -> Any:
    """JSON from a file that anybody may have touched: a ValueError for what is none, or is nested without end."""
    try:
        content = json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deep") from error
    if text.count("[") + text.count("{") > limits.DEEPEST:
        level = [content]
        for _ in range(limits.DEEPEST):
            inner = [one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list)]
            level = [value for values in inner for value in values]
        if level:
            raise ValueError(f"nested more than {limits.DEEPEST} deep")
    return content


def load(kind: str, text: str) -> dict[str, Any]:
    """The content of a JSON text that `dump` wrote."""
    try:
        content = loads(text)
    except (ValueError, TypeError) as error:
        raise FileFormatError(f"Not valid JSON ({error}). Expected a headprune.{kind} file.") from error
    if not isinstance(content, dict) or content.get("kind") != f"headprune.{kind}":
        found = content.get("kind") if isinstance(content, dict) else type(content).__name__
        raise FileFormatError(f"Found {found!r}, expected a headprune.{kind} file.")
    if content.get("schema") != SCHEMA:
        raise FileFormatError(
            f"This headprune.{kind} file has schema {content.get('schema')!r}; this headprune reads schema {SCHEMA}. "
            "Write the file again, or update headprune."
        )
    return content


def _umask() -> int:
    found = os.umask(0o022)
    os.umask(found)
    return found


_UMASK = _umask()  # asked once, while there is one thread: asking sets it


def writable(text: str) -> str:
    """Half a surrogate pair may come from the JSON of a file and is no text: shown as it was written there."""
    return text.encode("utf-8", "backslashreplace").decode()


def printable(text: object) -> str:
    """Text that comes from files, for a terminal: no codes that move its cursor or turn the direction of writing."""
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in str(text))


def markdown_text(text: object) -> str:
    """Text that comes from files stays text, on one line: nothing in it is markup."""
    words = str(text)
    for mark in "\\`*_<>[]|":
        words = words.replace(mark, f"\\{mark}")
    return " ".join(words.split())


def write_text(path: str | os.PathLike[str], text: str) -> Path:
    """Write a whole file or leave the old one: never half a file under the final name."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o666 & ~_UMASK)  # as any new file: a temporary one is its owner's alone
        Path(temporary).replace(target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return target


# How libraries that write in other languages tell of a disk that is full, or that may not be written.
_DISK_TROUBLE = re.compile(
    r"no space left|disk quota|os error (28|122|30|13|27)\b|PytorchStreamWriter failed|iostream error"
    r"|inline_container\.cc.* unexpected pos|read-only file system|permission denied|file too large",
    re.IGNORECASE,
)


def disk_trouble(error: BaseException | None) -> str | None:
    """What the system said, if a full disk or a missing permission is behind an error; None if it is another."""
    while error is not None:
        said = " ".join(str(error).split())[:300]
        if isinstance(error, OSError):
            return said
        if _DISK_TROUBLE.search(said):
            return f"a file could not be written, as on a full disk ({said})"
        error = error.__cause__ or error.__context__
    return None


def open_regular(path: Path, most: int) -> BinaryIO:
    """An ordinary file of at most so many bytes, opened; an OSError for a pipe or a device, which may never end."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        found = os.fstat(handle)
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(f"'{path}' is a folder")
        if not stat.S_ISREG(found.st_mode):
            raise OSError(f"'{path}' is no ordinary file but a device, a pipe or a socket")
        if found.st_size > most:
            raise OSError(f"'{path}' has {found.st_size} bytes; expected at most {most}")
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def bounded_text(path: Path, most: int = limits.JSON_BYTES) -> str:
    """The text of an ordinary file that may have come from anywhere; an OSError or a UnicodeDecodeError otherwise."""
    with open_regular(path, most) as file:
        return file.read(most).decode("utf-8")


def check_inside(path: Path, *folders: Path) -> None:
    """An OSError for a link that leads out of the folders: what it leads to was not meant to be shown or copied."""
    if path.is_symlink() and not any(path.resolve().is_relative_to(folder.resolve()) for folder in folders):
        raise OSError(f"'{path}' is a link that leads out of its folder")


def read_text(path: Path, kind: str) -> str:
    """The text of a file of some kind; the folder that a command wrote stands for the file of that kind in it."""
    if path.is_dir() and (path / f"{kind}.json").is_file():
        path = path / f"{kind}.json"
    try:
        return bounded_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise FileFormatError(f"The {kind} file '{path}' cannot be read: {error}.") from error


class WorkParts:
    """Finished parts of one piece of work, by name. Parts of other work in the same folder are not taken for ours."""

    def __init__(self, folder: Path, key: str) -> None:
        self.folder, self.key = folder, key

    def get(self, name: str) -> Any:
        """What was kept under a name; None if nothing was, or if it belongs to other work."""
        try:
            content = load("part", bounded_text(self._path(name)))
        except (OSError, UnicodeDecodeError, HeadpruneError):
            return None
        return content.get("value") if content.get("key") == self.key else None

    def put(self, name: str, value: object) -> None:
        write_text(self._path(name), dump("part", {"key": self.key, "value": value}))

    def finished(self) -> None:
        """The whole is written elsewhere: the parts can go."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _path(self, name: str) -> Path:
        return self.folder / f"{hashlib.sha256(f'{self.key} {name}'.encode()).hexdigest()[:16]}.json"


def note_step(path: Path, entry: Mapping[str, object]) -> None:
    """Add what was found at a training step (`entry["step"]`) to a file of lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")  # a run was stopped while writing a line: this one is not to be lost with it
        file.write(json.dumps(entry).encode() + b"\n")


def noted_steps(path: Path) -> list[dict[str, Any]]:
    """What was noted, by step; of steps that were done again after an interruption, the last."""
    try:
        lines = bounded_text(path).splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    entries: dict[int, dict[str, Any]] = {}
    for line in lines:
        try:
            entry = loads(line)
        except ValueError:
            continue  # the run was stopped while writing it
        if isinstance(entry, dict) and type(entry.get("step")) is int:
            entries[entry["step"]] = entry
    return [entries[step] for step in sorted(entries)]
