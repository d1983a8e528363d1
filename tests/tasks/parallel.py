"""A toy language pair that a tiny model can learn, in files like the real ones: words are spelt with another letter."""

from __future__ import annotations

import random
from pathlib import Path

NOUNS = {"dog": "hund", "cat": "katze", "man": "mann", "boy": "junge", "ball": "ball", "car": "auto"}
VERBS = {"sees": "sieht", "has": "hat", "wants": "will", "takes": "nimmt"}
ADJECTIVES = {"red": "rote", "big": "grosse", "old": "alte", "new": "neue"}


def pairs(count: int, seed: int) -> list[tuple[str, str]]:
    """English word order in, verb-final out: a translation that needs attention to more than one place."""
    generator = random.Random(seed)
    rows = []
    for _ in range(count):
        subject, thing = generator.choice(list(NOUNS)), generator.choice(list(NOUNS))
        verb, kind = generator.choice(list(VERBS)), generator.choice(list(ADJECTIVES))
        english = f"the {subject} {verb} the {kind} {thing}"
        german = f"der {NOUNS[subject]} den {ADJECTIVES[kind]} {NOUNS[thing]} {VERBS[verb]}"
        if generator.random() < 0.4:
            english, german = f"{english} now", f"jetzt {german}"
        rows.append((english, german))
    return rows


def write_pairs(folder: Path, train: int = 600, dev: int = 40, test: int = 40) -> Path:
    """DIR/train.en and train.de, dev and test likewise."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, count, seed in (("train", train, 0), ("dev", dev, 1), ("test", test, 2)):
        rows = pairs(count, seed)
        for side, ending in enumerate(("en", "de")):
            (folder / f"{name}.{ending}").write_text("".join(row[side] + "\n" for row in rows), encoding="utf-8")
    return folder
