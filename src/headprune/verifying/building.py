"""A tiny random model of any type that transformers has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from headprune.errors import HeadpruneError, UnsupportedModelError
from headprune.sites.example import example_inputs, to_model
from headprune.verifying.sizes import KINDS_OF_LAYERS, ODD, SMALL, VARIANTS

LARGEST = 40_000_000  # parameters; what cannot be made smaller is not tiny
# Which of a type's classes is taken: the first mapping that has it, then any other.
FIRST = (
    "CAUSAL_LM", "SEQ_TO_SEQ_CAUSAL_LM", "SPEECH_SEQ_2_SEQ", "SEQUENCE_CLASSIFICATION", "IMAGE_CLASSIFICATION", "CTC",
    "IMAGE_TEXT_TO_TEXT", "MULTIMODAL_LM",
)  # fmt: skip


@dataclass(frozen=True)
class Built:
    """A model with a batch that it takes."""

    model: nn.Module
    batch: Mapping[str, Any]


class NotBuiltError(HeadpruneError):
    """No tiny model of a type could be made to run."""


def model_types() -> list[str]:
    """Every type of the installed transformers that has a model class."""
    from transformers import CONFIG_MAPPING

    return sorted(name for name in CONFIG_MAPPING if class_of(name) is not None)


def class_of(model_type: str) -> Any:
    """The class that is built for a type; None if there is none."""
    import transformers
    from transformers.models.auto import modeling_auto

    every = [name for name in dir(modeling_auto) if name.endswith("_MAPPING_NAMES") and name.startswith("MODEL_")]
    wanted = [f"MODEL_FOR_{task}_MAPPING_NAMES" for task in FIRST] + ["MODEL_MAPPING_NAMES"]
    for mapping in dict.fromkeys((*wanted, *every)):
        names = getattr(modeling_auto, mapping, {}).get(model_type)
        for name in [names] if isinstance(names, str) else names or ():
            if hasattr(transformers, name):
                return getattr(transformers, name)
    return None


def build(model_type: str, *, seed: int = 0, attention: str | None = None) -> Built:
    """A tiny model that runs, with weights large enough that every head matters."""
    problems: list[str] = []
    for config in _configs(model_type, problems):
        if attention is not None:
            config._attn_implementation = attention
        torch.manual_seed(seed)
        try:
            return _built(class_of(model_type)(config), seed)
        except ImportError as error:
            raise NotBuiltError(f"needs a package that is not installed: {_short(error)}") from error
        except Exception as error:  # whatever a family stumbles over with these sizes
            problems.append(_short(error))
    raise NotBuiltError(f"no tiny model could be built: {problems[0]}")


def _built(model: nn.Module, seed: int) -> Built:
    size = sum(p.numel() for p in model.parameters())
    if size > LARGEST:
        raise UnsupportedModelError(f"It has {size / 1e6:.0f} M parameters.")
    _enlarge(model, seed)
    batch = example_inputs(model.eval())
    with torch.no_grad():
        model(**to_model(model, batch))
    return Built(model, batch)


def _configs(model_type: str, problems: list[str]) -> Iterator[Any]:
    from transformers import CONFIG_MAPPING

    for variant in VARIANTS:
        try:
            yield _shrunk(CONFIG_MAPPING[model_type], variant, ODD.get(model_type, {}))
        except Exception as error:  # a config that refuses its sizes
            problems.append(_short(error))


def _shrunk(cls: Any, variant: Mapping[str, Any], odd: Mapping[str, Any]) -> Any:
    """A config with small sizes, and those inside it likewise; `odd` may speak of the inner ones by name."""
    default = cls()
    inner = {name: _value(default, name) for name in getattr(cls, "sub_configs", {})}
    sizes = _sizes(cls, default, variant)
    for name, config in inner.items():
        if config is not None and not (name in odd and not isinstance(odd[name], dict)):
            kind = cls.sub_configs[name] if isinstance(config, dict) else type(config)
            sizes[name] = _shrunk(kind, variant, odd.get(name, {}))
    return cls(**{**sizes, **{name: value for name, value in odd.items() if name not in inner or name not in sizes}})


def _sizes(cls: Any, default: Any, variant: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the small sizes that a config has a name for."""
    known = {*default.to_dict(), *vars(default), *getattr(cls, "attribute_map", {})}
    sizes: dict[str, Any] = {}
    for name, value in {**SMALL, **variant}.items():
        current = _value(default, name)
        if name not in known or isinstance(current, bool) or isinstance(getattr(cls, name, None), property):
            continue
        if name == "num_key_value_heads" and current is None:
            continue
        if isinstance(current, list | tuple):
            if name not in ("image_size", "patch_size"):
                continue
            value = [value] * len(current)
        sizes[name] = value
    if sizes.get("head_dim", 0) is None:
        del sizes["head_dim"]
    layers = sizes.get("num_hidden_layers", 2)
    for name in KINDS_OF_LAYERS:
        kinds = list(dict.fromkeys(_value(default, name) or ()))
        if kinds and name in known and not isinstance(getattr(cls, name, None), property):
            sizes[name] = (kinds * layers)[:layers]
    return sizes


def _value(config: Any, name: str) -> Any:
    try:
        return getattr(config, name, None)
    except (ValueError, KeyError, RuntimeError):  # per-layer settings refuse to be asked for as one
        return None


def _enlarge(model: nn.Module, seed: int) -> None:
    """Biases and sinks begin at zero and weights at 0.02: both would hide mistakes."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad and parameter.is_floating_point():  # fixed tables are not saved with the model
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)


def _short(error: Exception) -> str:
    told = str(error) if isinstance(error, HeadpruneError) else f"{type(error).__name__}: {error}"
    return " ".join(told.split())[:240]
