"""The models on which tools are compared, and where their heads are. Runs under any transformers since 4.40."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from torch import Tensor, nn

SMALL = {"vocab_size": 120, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8}


@dataclass(frozen=True)
class Family:
    """A small random model: its classes by name, its config, and the output projections of its attention."""

    config: str
    auto: str
    outputs: tuple[str, ...]  # how the names of output projections end
    options: dict[str, Any] = field(default_factory=dict)
    asked: str = ""  # what must lose heads; anything if empty
    heads: int = 8

    def build(self, seed: int = 0) -> nn.Module:
        """Weights are large, so that every head matters and a wrong cut is seen in the outputs."""
        torch.manual_seed(seed)
        config = getattr(transformers, self.config)(**self.options)
        model = getattr(transformers, self.auto).from_config(config)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.normal_(0, 0.15)
        return model.eval()

    def batches(self, rows: int = 4, length: int = 12) -> list[dict[str, Tensor]]:
        """Two batches with labels, the second row of each padded."""
        found = []
        for seed in (1, 2):
            draw = torch.Generator().manual_seed(seed)
            ids = torch.randint(5, 110, (rows, length), generator=draw)
            mask = torch.ones_like(ids)
            mask[1, length // 2 :] = 0
            labels = torch.arange(rows) % 2 if "Classification" in self.auto else ids.clone()
            found.append({"input_ids": ids, "attention_mask": mask, "labels": labels})
        return found


FAMILIES = {
    "bert": Family(
        "BertConfig",
        "AutoModelForSequenceClassification",
        ("attention.output.dense",),
        {**SMALL, "intermediate_size": 96, "max_position_embeddings": 64},
    ),
    "llama": Family(
        "LlamaConfig",
        "AutoModelForCausalLM",
        ("self_attn.o_proj",),
        {**SMALL, "intermediate_size": 96, "num_key_value_heads": 4, "max_position_embeddings": 64},
    ),
    "llama-8-2": Family(
        "LlamaConfig",
        "AutoModelForCausalLM",
        ("self_attn.o_proj",),
        {**SMALL, "intermediate_size": 96, "num_key_value_heads": 2, "max_position_embeddings": 64},
    ),
    "gpt2": Family(
        "GPT2Config",
        "AutoModelForCausalLM",
        ("attn.c_proj",),
        {"vocab_size": 120, "n_embd": 64, "n_layer": 2, "n_head": 8, "n_positions": 64},
    ),
    "gpt_neox": Family(
        "GPTNeoXConfig",
        "AutoModelForCausalLM",
        ("attention.dense",),
        {**SMALL, "intermediate_size": 96, "max_position_embeddings": 64},
    ),
    "phi3": Family(
        "Phi3Config",
        "AutoModelForCausalLM",
        ("self_attn.o_proj",),
        {
            **SMALL,
            "intermediate_size": 96,
            "max_position_embeddings": 64,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    ),
    "bart": Family(
        "BartConfig",
        "AutoModelForSeq2SeqLM",
        ("self_attn.out_proj", "encoder_attn.out_proj"),
        {
            "vocab_size": 120,
            "d_model": 64,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": 8,
            "decoder_attention_heads": 8,
            "encoder_ffn_dim": 96,
            "decoder_ffn_dim": 96,
            "max_position_embeddings": 64,
        },
        asked="encoder_attn",
    ),
}


def answer(model: nn.Module, batch: dict[str, Any]) -> Tensor:
    """The logits. Encoder-decoders need labels to make their decoder inputs from."""
    wanted = {k: v for k, v in batch.items() if k != "labels" or getattr(model.config, "is_encoder_decoder", False)}
    with torch.no_grad():
        return model(**wanted).logits
