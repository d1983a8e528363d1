"""axe-core for the tests in a browser: one file of a pinned tarball, checked by its hash; no node is needed."""

from __future__ import annotations

import hashlib
import io
import sys
import tarfile
import urllib.request
from pathlib import Path

VERSION = "4.10.3"  # MPL-2.0; only tests use it
ADDRESS = f"https://registry.npmjs.org/axe-core/-/axe-core-{VERSION}.tgz"
SHA256 = "0f2b4d7dcdf7d1219df8d1959ad68e565f51d14c3f0d88bb71cd59abeb956292"
INSIDE = "package/axe.min.js"


def fetch(target: Path) -> Path:
    """The script, unless it is there already."""
    if not target.is_file():
        with urllib.request.urlopen(ADDRESS, timeout=60) as answer:
            tarball = answer.read()
        found = hashlib.sha256(tarball).hexdigest()
        if found != SHA256:
            sys.exit(f"axe-core {VERSION} has the hash {found}; expected {SHA256}.")
        with tarfile.open(fileobj=io.BytesIO(tarball)) as archive:
            file = archive.extractfile(INSIDE)
            assert file is not None, "the tarball of this hash has it"
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.read())
    return target


if __name__ == "__main__":
    print(fetch(Path(sys.argv[1])))
