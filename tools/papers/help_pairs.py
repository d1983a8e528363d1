"""English-German pairs from LibreOffice's help pages (Debian packages): another corpus than captions.

    python tools/papers/help_pairs.py OUT

Paragraphs with the same page and id are translations of each other. Short running sentences are kept: 4 to 25 words a
side, ending in a full stop, each source once. Needs apt-get and dpkg-deb.
"""

from __future__ import annotations

import random
import re
import subprocess
import sys
import tempfile
from html import unescape
from pathlib import Path

PACKAGES = {"en": "libreoffice-help-en-us", "de": "libreoffice-help-de"}
PARAGRAPH = re.compile(r'<p id="(par_id\d+)"[^>]*>(.*?)</p>', re.DOTALL)


def paragraphs(folder: Path) -> dict[tuple[str, str], str]:
    """(page, id) -> text without tags."""
    found = {}
    (root,) = folder.glob("usr/share/libreoffice/help/*/text")
    for page in sorted(root.rglob("*.html")):
        for name, inside in PARAGRAPH.findall(page.read_text(encoding="utf-8")):
            text = " ".join(unescape(re.sub(r"<[^>]+>", "", inside)).split())
            found[str(page.relative_to(root)), name] = text
    return found


def is_sentence(text: str) -> bool:
    return 4 <= len(text.split()) <= 25 and text.endswith(".") and text[0].isupper()


def main(out: Path) -> None:
    sides = {}
    with tempfile.TemporaryDirectory() as scratch:
        for language, package in PACKAGES.items():
            folder = Path(scratch) / language
            folder.mkdir()
            subprocess.run(["apt-get", "download", "-q", package], cwd=folder, check=True, capture_output=True)
            (archive,) = folder.glob("*.deb")
            subprocess.run(["dpkg-deb", "-x", archive, folder], check=True)
            sides[language] = paragraphs(folder)
    both = sorted({(sides["en"][key], sides["de"][key]) for key in sides["en"].keys() & sides["de"].keys()})
    pairs = list({pair[0]: pair for pair in both if all(map(is_sentence, pair)) and pair[0] != pair[1]}.values())
    random.Random(0).shuffle(pairs)
    out.mkdir(parents=True, exist_ok=True)
    for part, chosen in (("test", pairs[:500]), ("dev", pairs[500:800]), ("train", pairs[800:])):
        for side, language in enumerate(PACKAGES):
            (out / f"{part}.{language}").write_text("".join(f"{pair[side]}\n" for pair in chosen), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
