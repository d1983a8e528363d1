"""A toy language pair that a tiny model can learn, in files like the real ones: words are spelt with another letter."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import torch
from transformers import FSMTConfig, FSMTForConditionalGeneration

from headprune.tasks import find_task
from headprune.tasks.recipe import Recipe
from headprune.tasks.translation.pairs import Languages
from headprune.tasks.translation.presets import Shape

EN_DE = Languages("en", "de")

QUICK = Recipe(epochs=3, learning_rate=3e-3, batch_tokens=300, warmup=5, label_smoothing=0.1, max_length=60)

SMALL = Shape(layers=2, width=32, heads=4, feed_forward=48, positions=64, dropout=0.0)

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


def task_for(tokenizer, model, **more):
    task = replace(find_task("translation"), languages=Languages("en", "de"), **more)
    return task.for_processor(tokenizer, model.config)


def tiny_fsmt(size):
    torch.manual_seed(0)
    config = FSMTConfig(
        langs=["en", "de"], src_vocab_size=size, tgt_vocab_size=size, d_model=32, encoder_layers=2, decoder_layers=2,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, pad_token_id=0,
        max_position_embeddings=64, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1, forced_eos_token_id=None,
    )  # fmt: skip
    model = FSMTForConditionalGeneration(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model
