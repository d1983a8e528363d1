"""Writes requirements-dev.txt: every version of constraints.txt with the hashes of its files, for `make install`.

`make lock` asks pip, on whatever index it is set up for, which files it would take on each Python that is supported.
torch is left out: its builds differ by index, so it is pinned by its version alone and installed first.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ("3.11", "3.12", "3.13")
WITHOUT_HASH = ("torch",)
HEAD = """# Made by `make lock` from constraints.txt: do not edit. Install torch by its version first, then this file:
# pip install --no-deps --require-hashes -r requirements-dev.txt
"""


def pins() -> list[str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    found = [line.split("#")[0].strip() for line in lines]
    return [pin for pin in found if pin and pin.partition("==")[0] not in WITHOUT_HASH]


def taken(wanted: list[str], *how: str) -> dict[str, tuple[str, str]]:
    """The file that pip would install for each pin, and its hash."""
    with tempfile.TemporaryDirectory() as folder:
        asked, told = Path(folder) / "pins.txt", Path(folder) / "report.json"
        asked.write_text("\n".join(wanted))
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--no-deps"]
        subprocess.run([*pip, "--report", str(told), *how, "-r", str(asked)], check=True, stderr=subprocess.DEVNULL)
        report: dict[str, Any] = json.loads(told.read_text())
    found = {}
    for item in report["install"]:
        name, source = _name(item["metadata"]["name"]), item["download_info"]
        digest = source.get("archive_info", {}).get("hashes", {}).get("sha256")
        if not digest:
            raise SystemExit(f"The index tells no sha256 of {name}: use one that does.")
        found[name] = (source["url"].rpartition("/")[2].partition("#")[0], digest)
    return found


def _name(text: str) -> str:
    return re.sub(r"[-_.]+", "-", text).lower()


def hashes() -> dict[str, set[str]]:
    """By package, over all Pythons; a source archive is the same for all."""
    wanted = {_name(pin.partition("==")[0]): pin for pin in pins()}
    here = taken(list(wanted.values()))
    found = {name: {digest} for name, (_, digest) in here.items()}
    built = [pin for name, pin in wanted.items() if here[name][0].endswith(".whl") and "-none-any" not in here[name][0]]
    for python in PYTHONS:
        if python != f"{sys.version_info.major}.{sys.version_info.minor}":
            more = taken(built, "--python-version", python, "--only-binary", ":all:", "--target", "unused")
            for name, (_, digest) in more.items():
                found[name].add(digest)
    return found


def main() -> None:
    known = hashes()
    lines = []
    for pin in pins():
        digests = sorted(known[_name(pin.partition("==")[0])])
        lines.append(" \\\n    ".join([pin, *(f"--hash=sha256:{digest}" for digest in digests)]))
    (ROOT / "requirements-dev.txt").write_text(HEAD + "\n".join(lines) + "\n")
    print(f"requirements-dev.txt: {len(lines)} packages, {sum(map(len, known.values()))} files")


if __name__ == "__main__":
    main()
