"""Exchanging what a folder holds for something new: whole, whatever interrupts it.

FOLDER/.headprune-save-…/new/          what comes, written and synced first
FOLDER/.headprune-save-…/journal.json  what comes and what goes; once it is there, the exchange is only ever finished

Without a journal the folder is as it was, and what lies in `new` is litter. With one, all that is new is on the disk,
and whoever looks next (a save, a load, a command) moves the rest of it in. A folder cannot be exchanged as a whole,
although Linux could: it may hold files of others, which stay.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from headprune import files
from headprune.checkpoint import config_entry
from headprune.errors import CheckpointError, FileFormatError

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows, where folders cannot be locked: nothing is taken for litter there
    fcntl = None

log = logging.getLogger("headprune")

PREFIX = ".headprune-save-"
JOURNAL, NEW = "journal.json", "new"
CONFIG = "config.json"
WEIGHTS = ".safetensors"
NOTE = ".headprune.json"  # in a model folder: which command made it, and a key of what it was asked
MOST_BYTES, MOST_NAMES = 1 << 20, 10_000  # of a journal, which may come with a folder from anywhere

Goes = Callable[[list[str]], list[str]]  # what must go, given the names that come


@contextlib.contextmanager
def exchange(target: Path, goes: Goes = lambda names: []) -> Iterator[Path]:
    """A folder to write into. When the block ends, what is there takes the place of what has the same names in
    `target`, and what `goes` names is removed; if the block fails, `target` stays as it was."""
    made = [folder for folder in (target, *target.parents) if not folder.exists()]
    target.mkdir(parents=True, exist_ok=True)
    try:
        with _locked(target, wait=True) as is_ours:
            _settle_all(target, is_ours)
            work = Path(tempfile.mkdtemp(dir=target, prefix=PREFIX))
            try:
                (work / NEW).mkdir()
                yield work / NEW
                _commit(work, goes)
            finally:
                try:
                    _settle(target, work)
                except KeyboardInterrupt:
                    _settle(target, work)  # a second one leaves it to the next save or load
                    raise
                except OSError as error:
                    raise CheckpointError(
                        f"The new model was written whole, but could not be put into '{target}': {error}. The next "
                        "load from there, or save to there, finishes it."
                    ) from error
    except BaseException:
        for folder in made:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise


def finish_interrupted(folder: str | os.PathLike[str] | None) -> None:
    """End what a save was doing in this folder when it was stopped. Most folders have nothing of the kind."""
    if folder is None or not _unfinished(Path(folder)):
        return
    target = Path(folder)
    with _locked(target, wait=False) as is_ours:
        if is_ours is not None:  # otherwise somebody is saving at this moment
            _settle_all(target, is_ours)


def model_files(folder: str | os.PathLike[str] | None) -> list[tuple[str, int, int]]:
    """The config and weights of a folder, as they are now; nothing for a name on the hub."""
    try:
        with os.scandir(folder) as entries:
            wanted = sorted(entry.path for entry in entries if entry.name == CONFIG or entry.name.endswith(WEIGHTS))
    except (OSError, ValueError, TypeError):
        return []
    found = []
    for path in wanted:
        with contextlib.suppress(FileNotFoundError):  # gone since: somebody is saving
            now = Path(path).stat()
            found.append((path, now.st_ino, now.st_mtime_ns))
    return found


def check_unchanged(
    folder: str | os.PathLike[str] | None, before: list[tuple[str, int, int]], given: config_entry.Entry | None
) -> None:
    """Nobody saved another model into the folder since its config was read: its heads would be counted by that one."""
    if not before or folder is None:
        return
    with contextlib.suppress(OSError, ValueError):  # at this moment there is no config: somebody is saving
        stored = config_entry.stored_entry(Path(folder), config_entry.ENTRY)
        if model_files(folder) == before and given in (None, stored):
            return
    raise CheckpointError(f"Another model was saved into '{folder}' while it was being loaded. Load it again.")


def _unfinished(target: Path) -> list[Path]:
    try:
        with os.scandir(target) as entries:
            found = [entry.path for entry in entries if entry.name.startswith(PREFIX)]
    except (OSError, ValueError):  # no folder: a name on the hub, or a text that names nothing
        return []
    return [Path(path) for path in sorted(found) if not os.path.islink(path)]  # noqa: PTH114


def _settle_all(target: Path, is_ours: bool | None) -> None:
    removed = 0
    for work in _unfinished(target):
        is_committed = (work / JOURNAL).is_file()
        if not is_committed and not is_ours:
            continue  # maybe another process is writing there
        try:
            _settle(target, work, found_later=True)
            removed += not is_committed
        except OSError as error:
            if not is_committed:
                continue  # litter in a folder that cannot be written harms nobody
            raise CheckpointError(
                f"A save into '{target}' was interrupted, and cannot be finished: {error}. What it wrote is in '{work}'"
                "; make the folder writable, or free space on its disk, and try again."
            ) from error
    if removed:
        log.warning("What an interrupted save left in '%s' is removed; the model there is the one before it.", target)


def _commit(work: Path, goes: Goes) -> None:
    """Everything is on the disk, then the journal: from here on the new files are what the folder holds."""
    for root, _, names in os.walk(work / NEW):
        for name in (*names, ""):
            _sync(Path(root) / name)
    found = sorted(path.name for path in (work / NEW).iterdir())
    names = [name for name in found if not name.startswith(PREFIX)]  # litter of a save into it that had no room
    gone = [name for name in goes(names) if name not in names]
    files.write_text(work / JOURNAL, files.dump("exchange", {"comes": names, "goes": gone}))
    _sync(work)


def _settle(target: Path, work: Path, *, found_later: bool = False) -> None:
    """Finish an exchange that has a journal; then nothing of it is left. Does the same however often it is begun."""
    journal = work / JOURNAL
    if journal.is_file() and not journal.is_symlink():
        try:
            comes, gone = _read(journal)
        except FileFormatError as error:
            raise CheckpointError(
                f"'{journal}' says what an interrupted save was doing, and is damaged: {error}. Remove '{work}' if the "
                "model beside it loads without it."
            ) from error
        # The config goes first and comes last: in between there is none, so that nobody loads half of each model.
        overtaken = found_later and _is_newer(target / CONFIG, journal) and (work / NEW / CONFIG).is_file()
        if not overtaken:
            _move_in(target, work / NEW, comes, gone)
        journal.unlink()
        if found_later:
            told = "was given up: the model there is newer" if overtaken else "is finished now"
            log.warning("A save into '%s' had been interrupted; it %s.", target, told)
    shutil.rmtree(work, ignore_errors=True)


def _move_in(target: Path, new: Path, comes: list[str], gone: list[str]) -> None:
    if new.is_symlink():
        raise CheckpointError(f"'{new}' is a link; expected the folder of an interrupted save.")
    if CONFIG in comes and (new / CONFIG).is_file():
        _remove(target / CONFIG)
    for name in gone:
        _remove(target / name)
    for name in sorted(comes, key=lambda name: name == CONFIG):
        if os.path.lexists(new / name):  # or it was moved before
            if (target / name).is_dir() or (new / name).is_dir():
                _remove(target / name)
            (new / name).replace(target / name)
    _sync(target)


def _is_newer(path: Path, journal: Path) -> bool:
    """Whether somebody wrote a config after the journal. The old one is removed first, so nothing was exchanged yet."""
    return path.is_file() and path.stat().st_mtime_ns > journal.stat().st_mtime_ns


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _read(journal: Path) -> tuple[list[str], list[str]]:
    """Names of entries of one folder, and nothing that leads out of it."""
    if journal.stat().st_size > MOST_BYTES:
        raise FileFormatError(f"it has more than {MOST_BYTES} bytes")
    content = files.load("exchange", files.read_text(journal, "exchange"))
    found = [content.get("comes"), content.get("goes")]
    for names in found:
        if not isinstance(names, list) or len(names) > MOST_NAMES or not all(map(_is_name, names)):
            raise FileFormatError("it does not list names of files")
    return found[0], found[1]  # type: ignore[return-value]


def _is_name(name: object) -> bool:
    """No hidden one but ours: a folder from anywhere may lie in a place where such files steer other programs."""
    if not isinstance(name, str) or not name or (name.startswith(".") and name != NOTE):
        return False
    return not any(mark in name for mark in ("/", "\\", "\0"))


def _sync(path: Path) -> None:
    """What was written is on the disk, where the system can be asked for that."""
    with contextlib.suppress(PermissionError, IsADirectoryError):  # folders, on Windows
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextlib.contextmanager
def _locked(target: Path, *, wait: bool) -> Iterator[bool | None]:
    """Whether nobody else saves into the folder until the block ends: True; None if somebody does; False if it cannot
    be told, as on network disks. The lock dies with its process and leaves no file."""
    handle = None
    try:
        if fcntl is None:
            yield False
            return
        held: bool | None = True
        try:
            handle = os.open(target, os.O_RDONLY)
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            held = None
        except OSError:
            held = False
        yield held
    finally:
        if handle is not None:
            os.close(handle)
