"""Language models with a memory: All-attention (Sukhbaatar et al. 2019) and Transformer-XL (Dai et al. 2019).

`AllAttentionConfig`, `AllAttentionForCausalLM`, `TransformerXLConfig`, `TransformerXLForCausalLM` and `SegmentMemory`
are loaded when first used: transformers asks for the configs while it is itself being imported.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headprune.lab.models.configuration import AllAttentionConfig, TransformerXLConfig
    from headprune.lab.models.memory import SegmentMemory
    from headprune.lab.models.modeling import (
        AllAttentionForCausalLM,
        AllAttentionModel,
        TransformerXLForCausalLM,
        TransformerXLModel,
    )

__all__ = [
    "AllAttentionConfig",
    "AllAttentionForCausalLM",
    "AllAttentionModel",
    "SegmentMemory",
    "TransformerXLConfig",
    "TransformerXLForCausalLM",
    "TransformerXLModel",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    module = "memory" if name == "SegmentMemory" else "configuration" if name.endswith("Config") else "modeling"
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)
