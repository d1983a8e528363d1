"""Licences of everything that headprune brings along, from installed metadata, into docs/licences.md.

A licence that is not on the list below stops the release, with the package's name. To accept one is a decision:
add it here and say why.
"""

from __future__ import annotations

import argparse
import re
import sys
from email.message import Message

from tools.release.closure import Lookup, as_pinned, installed
from tools.release.project import ROOT

PAGE = ROOT / "docs" / "licences.md"

# Permissive licences, and MPL-2.0, whose terms end at the borders of its own files (certifi, tqdm).
ALLOWED = {
    "0BSD", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0",
    "CC0-1.0", "CNRI-Python", "HPND", "ISC", "MIT", "MIT-CMU", "MPL-2.0", "PSF-2.0", "Unlicense", "Zlib",
}  # fmt: skip

# The old free-text field and the classifiers, in the words of SPDX. "BSD" alone: which of them is not said.
WORDS = {
    "apache": "Apache-2.0",
    "apache 2.0": "Apache-2.0",
    "apache 2.0 license": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "osi approved :: apache software license": "Apache-2.0",
    "bsd": "BSD",
    "bsd license": "BSD",
    "3-clause bsd license": "BSD-3-Clause",
    "bsd 3-clause": "BSD-3-Clause",
    "isc license": "ISC",
    "isc license (iscl)": "ISC",
    "mit license": "MIT",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "psfl": "PSF-2.0",
    "python software foundation license": "PSF-2.0",
    "the unlicense (unlicense)": "Unlicense",
}
LONGEST_NAME = 80  # a longer License field is the licence's text, not its name


def licence_of(said: Message) -> str:
    """The licence that a package states, in SPDX's words where we know them; empty if it states none."""
    if said["License-Expression"]:
        return str(said["License-Expression"])
    named = str(said["License"] or "").strip()
    if named and len(named) <= LONGEST_NAME and "\n" not in named:
        return WORDS.get(named.lower(), named)
    last = [line.split(" :: ")[-1] for line in said.get_all("Classifier", []) if line.startswith("License :: OSI")]
    return " AND ".join(WORDS.get(word.lower(), word) for word in last)


def allowed(licence: str) -> bool:
    """Whether an expression can be met with allowed licences: each of an AND, one of an OR."""
    if not licence:
        return False
    words = re.findall(r"\(|\)|[^\s()]+", licence)
    verdict, rest = _either(words)
    return verdict and not rest


def _either(words: list[str]) -> tuple[bool, list[str]]:
    verdict, words = _both(words)
    while words and words[0].upper() == "OR":
        right, words = _both(words[1:])
        verdict = verdict or right
    return verdict, words


def _both(words: list[str]) -> tuple[bool, list[str]]:
    verdict, words = _one(words)
    while words and words[0].upper() == "AND":
        right, words = _one(words[1:])
        verdict = verdict and right
    return verdict, words


def _one(words: list[str]) -> tuple[bool, list[str]]:
    if not words:
        return False, []
    if words[0] == "(":
        verdict, words = _either(words[1:])
        return verdict and words[:1] == [")"], words[1:]
    if words[1:2] and words[1].upper() == "WITH":
        return " ".join([words[0], "WITH", *words[2:3]]) in ALLOWED, words[3:]
    return words[0] in ALLOWED, words[1:]


def table(look: Lookup = installed) -> list[tuple[str, str, str, str]]:
    """Name, version, licence and what brings it (core, or extras), for every package."""
    packages, brought = as_pinned(look=look)
    return [
        (
            name,
            package.version,
            licence_of(package.metadata),
            "core" if "core" in brought[name] else ", ".join(brought[name]),
        )
        for name, package in packages.items()
    ]


def refused(rows: list[tuple[str, str, str, str]]) -> list[str]:
    """A sentence for each package whose licence is not on the list."""
    return [
        f"{name} {version} (of {parts}): licence {licence or 'not stated'!r} is not on the list of licences.py"
        for name, version, licence, parts in rows
        if not allowed(licence)
    ]


def page(rows: list[tuple[str, str, str, str]]) -> str:
    """The table as docs/licences.md."""
    lines = [
        "<!-- Written by `python -m tools.release.licences` from installed metadata; do not edit. -->",
        "# Licences of dependencies",
        "",
        "What headprune and its extras bring on Linux with Python 3.11, at the versions of constraints.txt, with the",
        "licence that each package states about itself. headprune itself is under Apache-2.0 and ships none of them. A",
        "CUDA build of torch also brings NVIDIA's libraries, under NVIDIA's own terms; they are not in this table.",
        "",
        "| package | version | licence | brought by |",
        "|---|---|---|---|",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--check", action="store_true", help="write nothing; fail if the page is out of date")
    check = words.parse_args().check
    rows = table()
    if wrong := refused(rows):
        sys.exit("\n".join(wrong))
    if check and PAGE.read_text() != page(rows):
        sys.exit(f"{PAGE.name} is out of date: run `python -m tools.release.licences`")
    if not check:
        PAGE.write_text(page(rows))
    print(f"{len(rows)} packages, all under allowed licences")


if __name__ == "__main__":
    main()
