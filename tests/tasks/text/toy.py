"""A text with a pattern to learn, and small models for it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

import headprune as hp
from headprune.tasks.text.presets import Shape, new_language_model

SHAPE = Shape(layers=2, width=16, heads=4, persistent=6, memory=5, dropout=0.0, attention_dropout=0.0)


def babble(length: int = 900, seed: int = 0) -> str:
    """Letters with a pattern to learn: a vowel after every consonant, mostly the same one."""
    generator = np.random.default_rng(seed)
    pairs = [
        f"{c}{'aeiou'[(ord(c) + (generator.random() < 0.1)) % 5]}" for c in generator.choice(list("bdfgk"), length)
    ]
    return " ".join("".join(pairs[i : i + 3]) for i in range(0, length, 3))


def fresh(tokenizer, **more):
    return new_language_model(replace(SHAPE, **more), tokenizer, seed=1)


def gated(tokenizer, **options):
    """A model whose gates are partly closed."""
    model = fresh(tokenizer)
    gates = hp.attach_gates(model, hp.BinaryConcrete, **options)
    with torch.no_grad():
        gates.gate("decoder.0").log_alpha.copy_(torch.tensor([3.0, -3.0, 3.0, -3.0]))
        gates.gate("decoder.1").log_alpha.copy_(torch.tensor([-3.0, 3.0, 3.0, 3.0]))
    return model.eval(), gates
