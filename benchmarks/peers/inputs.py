"""What every tool is given: the same checkpoints and the same token ids, written once by the project's environment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

LENGTH, CALIBRATION = 64, 512
QUICK = {
    "hidden_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 192,
    "vocab_size": 500,
}


def timing(folder: Path, quick: bool) -> tuple[Path, Path, dict[str, Any]]:
    """A random classifier of BERT-base shape and 128 examples of 64 tokens; something small if quick."""
    config = BertConfig(**QUICK) if quick else BertConfig()
    torch.manual_seed(0)
    model = BertForSequenceClassification(config)
    with torch.no_grad():  # larger than at the start of training, so that heads matter and a wrong cut is seen
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(3)
    checkpoint, data = folder / "shape", folder / "timing.npz"
    model.save_pretrained(checkpoint)
    examples, length = (64, 16) if quick else (128, LENGTH)
    ids = np.random.default_rng(0).integers(5, config.vocab_size, (examples, length))
    np.savez(data, train_ids=ids, train_mask=np.ones_like(ids), train_labels=np.arange(examples) % 2)
    about = {
        "layers": config.num_hidden_layers,
        "heads": config.num_attention_heads,
        "width": config.hidden_size,
        "examples": examples,
        "tokens": length,
        "batch": 32,
    }
    return checkpoint, data, about


def quality(folder: Path, classifier: Path, data_dir: Path, quick: bool) -> Path:
    """SST-2 as ids: 512 training sentences by a fixed seed, and all 872 of the dev set."""
    tokenizer = AutoTokenizer.from_pretrained(classifier)
    parts: dict[str, Any] = {}
    for part, name, count in (("train", "train.tsv", CALIBRATION), ("dev", "dev.tsv", 64 if quick else None)):
        rows = [line.rsplit("\t", 1) for line in (data_dir / "sst2" / name).read_text().splitlines() if line.strip()]
        if part == "train":
            rows = [rows[place] for place in np.random.default_rng(1).permutation(len(rows))]
        rows = rows[: 64 if quick else count]
        # Always as long as allowed: slimformers adds activations of batches up and needs equal shapes.
        coded = tokenizer([text for text, _ in rows], truncation=True, padding="max_length", max_length=LENGTH)
        parts[f"{part}_ids"], parts[f"{part}_mask"] = np.array(coded["input_ids"]), np.array(coded["attention_mask"])
        parts[f"{part}_labels"] = np.array([int(label) for _, label in rows])
    path = folder / "quality.npz"
    np.savez(path, **parts)
    return path
