"""Tiny random models of the named families, real transformers classes with real structure."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from tools.families.build_model import enlarge_, tiny_config
from torch import nn

import headprune  # noqa: F401  # registers our own models

ENCODERS = ("bert", "roberta", "distilbert", "albert", "electra", "deberta-v2", "mpnet", "modernbert", "xlm-roberta")
DECODERS = (
    "gpt2", "gpt_neo", "gpt_neox", "opt", "bloom", "falcon", "mpt", "phi", "phi3", "llama", "mistral", "mixtral",
    "qwen2", "qwen3", "gemma2", "gemma3_text", "gpt_oss", "deepseek_v3", "all_attention", "transformer_xl",
)  # fmt: skip
SEQ2SEQ = ("t5", "mt5", "bart", "mbart", "marian", "m2m_100", "pegasus", "whisper")
OTHERS = ("wav2vec2", "vit", "deit", "dinov2", "clip", "siglip", "swin")
FAMILIES = (*ENCODERS, *DECODERS, *SEQ2SEQ, *OTHERS)

AUTO = {
    **dict.fromkeys(ENCODERS, transformers.AutoModelForSequenceClassification),
    **dict.fromkeys(DECODERS, transformers.AutoModelForCausalLM),
    **dict.fromkeys(SEQ2SEQ, transformers.AutoModelForSeq2SeqLM),
    "mpnet": transformers.AutoModelForSequenceClassification,
    "whisper": transformers.AutoModelForSpeechSeq2Seq,
    "wav2vec2": transformers.AutoModelForCTC,
    "vit": transformers.AutoModelForImageClassification,
    "deit": transformers.DeiTForImageClassification,
    "dinov2": transformers.AutoModelForImageClassification,
    "swin": transformers.AutoModelForImageClassification,
    "clip": transformers.AutoModel,
    "siglip": transformers.AutoModel,
}


def tiny_model(family: str, seed: int = 0, **more: Any) -> nn.Module:
    """A random model with weights large enough that every head matters."""
    torch.manual_seed(seed)
    auto = more.pop("auto", None) or AUTO[family]
    attention = more.pop("attn_implementation", None)
    config = tiny_config(family, **more)
    if attention:
        config._attn_implementation = attention
    model = auto.from_config(config) if auto.__name__.startswith("Auto") else auto(config)
    enlarge_(model, seed)
    return model.eval()


def padded_batch(model: nn.Module) -> dict[str, Any]:
    """An example whose second row is padded, where the model takes tokens."""
    from headprune.structure.example import example_inputs

    batch = example_inputs(model, seed=1)
    if "attention_mask" in batch:
        batch["attention_mask"][1, 4:] = 0
    return batch


def expected_sites(family: str) -> dict[str, int]:
    """How many sites of each component a tiny model has: two layers of each, unless noted."""
    if family in ENCODERS:
        return {"encoder": 1 if family == "albert" else 2}
    if family in DECODERS:
        return {"decoder": 2}
    if family in SEQ2SEQ:
        return {"encoder": 2, "decoder": 2, "cross": 2}
    return {"clip": {"encoder": 2, "decoder": 2}, "siglip": {"encoder": 4, "cross": 1}, "swin": {"encoder": 4}}.get(
        family, {"encoder": 2}
    )
