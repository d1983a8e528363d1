"""Books as text for language models: books.py FOLDER OUT cuts every .txt file of FOLDER 98 / 1 / 1 and joins the parts.

Books cut one by one, so that each is in train, dev and test: the parts then have the same authors.
"""

from __future__ import annotations

import sys
from pathlib import Path


def main(folder: Path, out: Path) -> None:
    books = sorted(folder.glob("*.txt"))
    if not books:
        sys.exit(f"'{folder}' has no .txt files")
    out.mkdir(parents=True, exist_ok=True)
    texts = [book.read_text(encoding="utf-8", errors="replace") for book in books]
    for part, start, end in (("train", 0.0, 0.98), ("dev", 0.98, 0.99), ("test", 0.99, 1.0)):
        pieces = [text[round(start * len(text)) : round(end * len(text))] for text in texts]
        (out / f"{part}.txt").write_text("\n".join(pieces), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
