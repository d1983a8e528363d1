"""Tiny random models of the named families, real transformers classes with real structure."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import nn
from transformers import CONFIG_MAPPING, PreTrainedConfig

import headprune  # noqa: F401  # registers our own models

ENCODERS = ("bert", "roberta", "distilbert", "albert", "electra", "deberta-v2", "mpnet", "modernbert", "xlm-roberta")
DECODERS = (
    "gpt2", "gpt_neo", "gpt_neox", "opt", "bloom", "falcon", "mpt", "phi", "phi3", "llama", "mistral", "mixtral",
    "qwen2", "qwen3", "gemma2", "gemma3_text", "gpt_oss", "deepseek_v3", "all_attention", "transformer_xl",
)  # fmt: skip
SEQ2SEQ = ("t5", "mt5", "bart", "mbart", "marian", "m2m_100", "pegasus", "whisper")
OTHERS = ("wav2vec2", "vit", "deit", "dinov2", "clip", "siglip", "swin")
FAMILIES = (*ENCODERS, *DECODERS, *SEQ2SEQ, *OTHERS)

# What a tiny model looks like, under every name that configs have for it.
SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "d_model": 32,
    "dim": 32,
    "n_embd": 32,
    "word_embed_proj_dim": 32,
    "embedding_size": 32,
    "num_hidden_layers": 2,
    "n_layers": 2,
    "n_layer": 2,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "num_attention_heads": 4,
    "num_heads": 4,
    "n_heads": 4,
    "n_head": 4,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "num_key_value_heads": 2,
    "d_kv": 8,
    "head_dim": 8,
    "intermediate_size": 48,
    "hidden_dim": 48,
    "d_ff": 48,
    "ffn_dim": 48,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "moe_intermediate_size": 16,
    "vocab_size": 99,
    "max_position_embeddings": 64,
    "n_positions": 64,
    "max_seq_len": 64,
    "image_size": 16,
    "patch_size": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
    "forced_eos_token_id": None,
    "sliding_window": 16,
}

ODD: dict[str, dict[str, Any]] = {
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 4},
    "modernbert": {"cls_token_id": 1, "sep_token_id": 2},
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": 8},
    "phi3": {"original_max_position_embeddings": 64},
    "gemma2": {"query_pre_attn_scalar": 8, "sliding_window": 4},
    "gemma3_text": {"query_pre_attn_scalar": 8, "sliding_window": 4},
    "deepseek_v3": {
        "num_key_value_heads": 4,
        "q_lora_rank": 12,
        "kv_lora_rank": 8,
        "qk_rope_head_dim": 4,
        "qk_nope_head_dim": 8,
        "v_head_dim": 6,
        "n_routed_experts": 4,
        "n_group": 2,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "head_dim": 4,
    },
    "whisper": {"max_source_positions": 10, "max_target_positions": 24, "num_mel_bins": 8, "num_key_value_heads": 4},
    "wav2vec2": {
        "conv_dim": (16, 16),
        "conv_kernel": (4, 3),
        "conv_stride": (2, 2),
        "num_conv_pos_embeddings": 4,
        "num_conv_pos_embedding_groups": 2,
        "num_feat_extract_layers": 2,
        "mask_time_length": 2,
    },
    "t5": {"decoder_start_token_id": 0},
    "mt5": {"decoder_start_token_id": 0},
    "swin": {"embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 2, "num_attention_heads": [2, 4]},
    "all_attention": {"num_persistent": 12, "memory_length": 8},
    "transformer_xl": {"memory_length": 8, "cutoffs": [20, 60]},
    "falcon": {"alibi": False, "new_decoder_architecture": False, "multi_query": False},
}

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


def tiny_config(family: str, **more: Any) -> PreTrainedConfig:
    cls = CONFIG_MAPPING[family]
    if family in ("clip", "siglip"):
        subs = {name: _sub(kind, more) for name, kind in cls.sub_configs.items()}
        return cls(**{name: sub.to_dict() for name, sub in subs.items()}, projection_dim=16)
    return _sub(cls, ODD.get(family, {}) | more)


def _sub(cls: Any, more: dict[str, Any]) -> PreTrainedConfig:
    default = cls()
    known = {name: value for name, value in SMALL.items() if hasattr(default, name)}
    if getattr(default, "num_key_value_heads", None) is None:
        known.pop("num_key_value_heads", None)
    if "head_dim" in known and isinstance(getattr(cls, "head_dim", None), property):
        known.pop("head_dim")  # falcon computes it
    return cls(**{**known, **more})


def tiny_model(family: str, seed: int = 0, **more: Any) -> nn.Module:
    """A random model with weights large enough that every head matters."""
    torch.manual_seed(seed)
    auto = more.pop("auto", AUTO[family])
    attention = more.pop("attn_implementation", None)
    config = tiny_config(family, **more)
    if attention:
        config._attn_implementation = attention
    model = auto.from_config(config) if auto.__name__.startswith("Auto") else auto(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.requires_grad:
                continue  # fixed position tables are not saved with the model
            # Biases and sinks are initialised to zero and weights to 0.02: both would hide mistakes.
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model.eval()


def padded_batch(model: nn.Module) -> dict[str, Any]:
    """An example whose second row is padded, where the model takes tokens."""
    from headprune.sites.example import example_inputs

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
