"""What a sweep is given from outside (data, models): known by its content, wherever it lies."""

from __future__ import annotations

import hashlib
from pathlib import Path

from headprune.errors import DataError


def fingerprint(path: Path) -> str:
    """The same for the same files on every machine: by names and contents. Hidden files do not count."""
    if not path.exists():
        raise DataError(f"'{path}' does not exist.")
    digest = hashlib.sha256()
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file() and not _hidden(p, path))
    if not files:
        raise DataError(f"'{path}' has no files.")
    for file in files:
        name = "" if file == path else file.relative_to(path).as_posix()
        with file.open("rb") as content:
            digest.update(f"{name}\0".encode() + hashlib.file_digest(content, "sha256").digest())
    return digest.hexdigest()[:16]


def _hidden(file: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in file.relative_to(folder).parts)
