"""Tiny random models of the named families, real transformers classes with real structure."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from tools.families.build_model import enlarge_, tiny_config
from torch import nn

import headprune as hp  # registers our own models
from headprune.structure.dummy_inputs import example_inputs
from headprune.structure.run import run

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
    batch = example_inputs(model, seed=1)
    if "attention_mask" in batch:
        batch["attention_mask"][1, 4:] = 0
    return batch


def labelled_batch(model: nn.Module, rows: int = 2, length: int = 7) -> dict[str, Any]:
    """An example with labels of two classes."""
    return {**example_inputs(model, batch=rows, length=length), "labels": torch.arange(rows) % 2}


def answer_of(model: nn.Module, batch: Any = None) -> Any:
    """What a model says to a batch, or to an example made for it."""
    with torch.no_grad():
        return run(model, batch if batch is not None else example_inputs(model))


def full_mask(model: nn.Module) -> hp.HeadMask:
    """All heads that a model has."""
    return hp.HeadMask.full(hp.find_heads(model))


def half_of(heads: hp.HeadMap, seed: int = 0) -> hp.HeadMask:
    """Half of the heads at random, in whole groups."""
    return hp.HeadMask.random(heads, keep=0.5, seed=seed, unit="group")


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


def labelled_batches(model, count=3):
    """Batches with labels that the model computes a loss from."""
    batches = [example_inputs(model, seed=seed) for seed in range(count)]
    return [{**batch, "labels": torch.tensor([0, 1])} for batch in batches]
