"""Models of the paper's size, and tiny ones."""

from __future__ import annotations

import torch
from transformers import AutoConfig, AutoModelForCausalLM

import headprune as hp

WIKITEXT = {"vocab_size": 267_735, "cutoffs": [20_000, 40_000, 200_000], "position_rows": 512}


def paper(words: bool = True, **more):
    """Shim et al., section 4.1.1."""
    return hp.AllAttentionConfig(**(WIKITEXT if words else {"memory_length": 512, "num_hidden_layers": 12}), **more)


def tiny(kind: str = "all_attention", seed: int = 0, **more):
    """A random model in which every weight matters."""
    torch.manual_seed(seed)
    own = {"num_persistent": 5} if kind == "all_attention" else {"intermediate_size": 24}
    shape = {"vocab_size": 40, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "memory_length": 6}
    config = AutoConfig.for_model(kind, **{**shape, **own, **more})
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model
