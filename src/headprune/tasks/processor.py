"""The tokenizer or image processor of a model, made ready for a task."""

from __future__ import annotations

import transformers
from torch import nn

from headprune.checkpoint.load_model import quiet_transformers
from headprune.errors import DataError, MissingExtraError
from headprune.tasks.tags import splits_words
from headprune.tasks.task import Task
from headprune.types import Processor, Tokenizer


def load_processor(task: Task, name: str) -> Processor | None:
    """The tokenizer or image processor that comes with a model."""
    if not task.processor_class:
        return None
    quiet_transformers()
    try:
        processor = getattr(transformers, task.processor_class).from_pretrained(name)
    except ImportError as error:
        raise MissingExtraError(f"The tokenizer of '{name}' needs a package that is not installed: {error}") from error
    except (OSError, ValueError, KeyError) as error:
        kind = "tokenizer" if task.processor_class == "AutoTokenizer" else "image processor"
        raise DataError(f"'{name}' has no {kind} ({error}). Save one into the model's folder.") from error
    if task.processor_class != "AutoTokenizer":
        return processor
    return ready_tokenizer(processor, takes_words=task.takes_words)


def ready_tokenizer(tokenizer: Tokenizer, *, takes_words: bool) -> Tokenizer:
    """Pads on the right, with something; for texts that come as lists of words, keeps the words apart.

    Only for these: elsewhere another way of putting spaces would change what the model reads.
    """
    if takes_words and not splits_words(tokenizer):  # byte-level tokenizers would read "the film" as "thefilm"
        again = transformers.AutoTokenizer.from_pretrained(tokenizer.name_or_path, add_prefix_space=True)
        tokenizer = again if splits_words(again) else tokenizer
    tokenizer.padding_side = "right"
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token  # padded positions are masked and have no label
    return tokenizer


def match_padding_(model: nn.Module, processor: Processor | None) -> nn.Module:
    """Classifiers on decoders look for the last token before the padding, so the model must know it."""
    config, token = getattr(model, "config", None), getattr(processor, "pad_token_id", None)
    if config is not None and getattr(config, "pad_token_id", None) is None and token is not None:
        config.pad_token_id = token
    return model
