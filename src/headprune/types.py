"""Types that many rooms share. Those of transformers are names for readers: its classes carry no types of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from transformers import PreTrainedConfig as Config
    from transformers import PreTrainedTokenizerBase as Tokenizer
    from transformers.utils import ModelOutput as Outputs
else:  # importing transformers would take seconds
    Config = Outputs = Tokenizer = Any

Batch: TypeAlias = Mapping[str, Any]  # model inputs by name
Args: TypeAlias = tuple[Any, ...]  # what any module or function of PyTorch may be called with
Kwargs: TypeAlias = dict[str, Any]
Function: TypeAlias = Callable[..., Any]
Processor: TypeAlias = Tokenizer  # or an image processor

__all__ = ["Args", "Batch", "Config", "Function", "Kwargs", "Outputs", "Processor", "Tokenizer"]
