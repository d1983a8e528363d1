"""A toy sentiment task that a tiny model can learn, in files like the real ones."""

from __future__ import annotations

import json
import random
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

from headprune.tasks import Source, find_task

SST2 = find_task("sst2")

TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}

GOOD, BAD = ["good", "fine", "great", "lovely"], ["bad", "poor", "awful", "dull"]
OTHER = ["the", "film", "plot", "is", "was", "very", "a", "and", "but", "story"]


def sentences(count: int, seed: int) -> list[tuple[str, int]]:
    generator = random.Random(seed)
    rows = []
    for _ in range(count):
        label = generator.randint(0, 1)
        words = [*generator.choices(OTHER, k=generator.randint(2, 7)), generator.choice(GOOD if label else BAD)]
        generator.shuffle(words)
        rows.append((" ".join(words), label))
    return rows


TEXT = "\n".join(text for text, _ in sentences(40, 0))


def write_data(folder: Path, train: int = 200, dev: int = 60) -> Path:
    """DIR/sst2/train.tsv and dev.tsv."""
    (folder / "sst2").mkdir(parents=True)
    for name, count, seed in (("train", train, 0), ("dev", dev, 1)):
        lines = [f"{text}\t{label}" for text, label in sentences(count, seed)]
        (folder / "sst2" / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    return folder


def tokenizer() -> PreTrainedTokenizerFast:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *GOOD, *BAD, *OTHER]
    raw = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    raw.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]",
                                   sep_token="[SEP]", mask_token="[MASK]")  # fmt: skip


def write_model(folder: Path, seed: int = 0) -> Path:
    torch.manual_seed(seed)
    config = BertConfig(vocab_size=23, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
                        max_position_embeddings=32)  # fmt: skip
    BertForSequenceClassification(config).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def word_tokenizer(text):
    words = ["[PAD]", "[UNK]", "[MASK]", "[CLS]", "[SEP]", *sorted(set(text.split()))]
    raw = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="[PAD]", unk_token="[UNK]", mask_token="[MASK]",
                                   cls_token="[CLS]", sep_token="[SEP]")  # fmt: skip


def write_rows(folder, split, rows):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{split}.jsonl").write_text("\n".join(json.dumps(row) for row in rows))


def examples(folder, rows=None):
    """Encoded examples of a file written for them."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f"{text}\t{label}" for text, label in (rows if rows is not None else sentences(30, 0))]
    (folder / "train.tsv").write_text("\n".join(lines))
    return SST2.load(Source(folder), "train", tokenizer(), 64)
