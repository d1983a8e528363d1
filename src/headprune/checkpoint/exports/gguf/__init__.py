"""GGUF, the format of llama.cpp: written, opened by a real llama.cpp, and compared before it is left anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from headprune.checkpoint.exports.gguf.comparison import TEXT, Exact, check
from headprune.checkpoint.exports.gguf.file import KINDS, Header, packages, write_gguf
from headprune.checkpoint.exports.gguf.graph import decoder_of
from headprune.checkpoint.exports.gguf.runtime import xllamacpp
from headprune.checkpoint.exports.gguf.vocabulary import load_tokenizer, vocabulary_of
from headprune.checkpoint.exports.registry import Checked, exports
from headprune.errors import CheckpointError, UnsupportedModelError
from headprune.registry import known_name
from headprune.structure.run import eval_mode, unwrapped
from headprune.surgery.prune import refuse_unfit_models, refuse_unpruned_repair
from headprune.types import Batch

FILE = "model.gguf"
LONGEST = 512  # tokens of context that the comparison takes
SHORT = 16  # tokens on which the graph is compared before anything is written


@exports.add(
    "gguf",
    loading="The GGUF file is the model for llama.cpp and what is built on it (Ollama, LM Studio, …).",
    weights="*.gguf",
    file=FILE,
)
def save_gguf(
    model: nn.Module, folder: Path, example: Batch | None, *, quantize: str = "f16", tokenizer: Any = None,
    texts: Sequence[str] = (), pre_tokenizer: str | None = None, unchecked: bool = False,
) -> Checked:  # fmt: skip
    """Write `model.gguf`: its own architecture where layers are alike, `deci` where heads or neurons differ.

    A twin in float32 is opened by llama.cpp (the package xllamacpp) and must agree with PyTorch: token ids, next-token
    log-probabilities within 1e-3, a greedy continuation. What `quantize` costs in perplexity is told. `texts` are what
    is compared on, instead of a paragraph of ours.
    """
    packages()
    known_name("--quantize", quantize, KINDS)
    if not unchecked:
        xllamacpp()
    model = unwrapped(model)
    refuse_unfit_models(model)
    refuse_unpruned_repair(model)
    config = getattr(model, "config", None)
    if config is None or not hasattr(config, "vocab_size"):
        raise UnsupportedModelError(f"{type(model).__name__} has no vocabulary: llama.cpp runs language models.")
    source = str(getattr(config, "_name_or_path", "") or "")
    if tokenizer is None or isinstance(tokenizer, str | Path):
        place = str(tokenizer or source)
        if not place:
            raise CheckpointError(
                "llama.cpp reads text by a vocabulary in the file, and this model says of no tokenizer: it was not "
                "loaded from a folder. Pass tokenizer=, the tokenizer or its folder."
            )
        tokenizer = load_tokenizer(place)
    with eval_mode(model), torch.no_grad():
        device = next(model.parameters()).device
        ids = torch.tensor(tokenizer(TEXT)["input_ids"][:SHORT], device=device) % config.vocab_size
        decoder = decoder_of(model, ids)
        words = vocabulary_of(tokenizer, config.vocab_size, pre_tokenizer)
        header = Header(Path(source).name or type(model).__name__, config.model_type, config.max_position_embeddings)
        written = write_gguf(folder / FILE, decoder, words, header, quantize)
        told = (f"architecture {written.architecture}, {quantize}", *written.notes)
        if unchecked:
            return Checked({}, (*told, "not opened by llama.cpp, as you asked: whether it agrees is not known"))
        exact = folder / (FILE if quantize == "f32" else "exact.gguf")
        if quantize != "f32":
            write_gguf(exact, decoder, words, header, "f32")
        longest = min(LONGEST, config.max_position_embeddings)
        found = check(exact, folder / FILE, quantize, Exact(model, decoder), tokenizer, texts, longest)
        if quantize != "f32":
            exact.unlink()
    return Checked(found.figures, (*told, *found.told))
