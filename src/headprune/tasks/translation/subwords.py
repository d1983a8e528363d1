"""A tokenizer for both languages, trained on parallel text and saved in the transformers format."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from headprune.errors import DataError
from headprune.files import write_text

SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")  # in this order: padding is 0
Kind = Literal["bpe", "unigram"]
NOTE = "subwords.json"  # what the tokenizer was trained on


def train_subwords(texts: Iterable[str], size: int, kind: Kind = "bpe") -> Any:
    """`bpe` merges bytes (Sennrich et al. 2016; nothing is unknown to it), `unigram` is SentencePiece's default
    (Kudo 2018). Both keep spaces, so that decoding gives text as people write it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    smallest = 256 + len(SPECIAL) if kind == "bpe" else 64
    if size < smallest:
        raise DataError(f"The vocabulary has {size} entries; a {kind} tokenizer needs at least {smallest}.")
    special = list(SPECIAL)
    if kind == "bpe":
        raw = Tokenizer(models.BPE())
        raw.pre_tokenizer, raw.decoder = pre_tokenizers.ByteLevel(add_prefix_space=True), decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer: Any = trainers.BpeTrainer(
            vocab_size=size, special_tokens=special, initial_alphabet=alphabet, show_progress=False
        )
    elif kind == "unigram":
        raw = Tokenizer(models.Unigram())
        raw.pre_tokenizer, raw.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
        trainer = trainers.UnigramTrainer(
            vocab_size=size, special_tokens=special, unk_token="<unk>", show_progress=False
        )
    else:
        raise DataError(f"No kind of subwords called '{kind}'. Known: bpe, unigram.")
    try:
        raw.train_from_iterator(texts, trainer)
    except Exception as error:  # tokenizers raises its own bare exceptions
        raise DataError(
            f"A {kind} tokenizer with {size} entries cannot be trained on this text: {error}. Raise --vocabulary, or "
            "use --subwords bpe, which needs no entry for every character."
        ) from error
    end = special.index("</s>")
    raw.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", end)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=raw,
        **{f"{name}_token": token for name, token in zip(("pad", "bos", "eos", "unk"), special, strict=True)},
    )


def subwords_of(folder: Path, texts: list[str], size: int, kind: Kind = "bpe") -> Any:
    """The tokenizer in `folder` if it was trained on the same text in the same way, else a new one, saved there."""
    from transformers import PreTrainedTokenizerFast

    digest = hashlib.sha256(json.dumps([kind, size]).encode())
    for text in texts:
        digest.update(text.encode() + b"\n")
    note = json.dumps({"kind": kind, "size": size, "trained_on": digest.hexdigest()[:16]})
    known = folder / NOTE
    if known.is_file() and known.read_bytes() == note.encode():
        return PreTrainedTokenizerFast.from_pretrained(folder)
    tokenizer = train_subwords(texts, size, kind)
    tokenizer.save_pretrained(folder)
    write_text(known, note)
    return tokenizer
