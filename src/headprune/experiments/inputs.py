"""What a sweep is given from outside (data, models): known by its content, wherever it lies."""

from __future__ import annotations

import hashlib
from pathlib import Path

from headprune.errors import DataError

WHOLE = 1 << 20  # files up to this size are read whole, of larger ones both ends


def fingerprint(path: Path) -> str:
    """The same for the same files on every machine: by names, sizes and contents (of large files, both ends)."""
    if not path.exists():
        raise DataError(f"'{path}' does not exist.")
    digest = hashlib.sha256()
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    if not files:
        raise DataError(f"'{path}' has no files.")
    for file in files:
        name = "" if file == path else file.relative_to(path).as_posix()
        size = file.stat().st_size
        digest.update(f"{name}\0{size}\0".encode())
        with file.open("rb") as content:
            if size <= WHOLE:
                digest.update(content.read())
            else:
                digest.update(content.read(WHOLE // 2))
                content.seek(-(WHOLE // 2), 2)
                digest.update(content.read())
    return digest.hexdigest()[:16]
