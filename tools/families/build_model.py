"""A tiny random model of any type that transformers has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from tools.families.sizes import KINDS_OF_LAYERS, ODD, SMALL, VARIANTS
from torch import nn

from headprune.errors import HeadpruneError
from headprune.structure.dummy_inputs import example_inputs, value_of
from headprune.structure.run import run

LARGEST = 40_000_000  # parameters; what cannot be made smaller is not tiny
# Which of a type's classes is taken: the first mapping that has it, then any other.
FIRST = (
    "SEQ_TO_SEQ_CAUSAL_LM", "SPEECH_SEQ_2_SEQ", "CAUSAL_LM", "SEQUENCE_CLASSIFICATION", "IMAGE_CLASSIFICATION", "CTC",
    "IMAGE_TEXT_TO_TEXT", "MULTIMODAL_LM", "TEXT_RECOGNITION",
)  # fmt: skip


@dataclass(frozen=True)
class Built:
    """A model with a batch that it takes."""

    model: nn.Module
    batch: Mapping[str, Any]


class NotBuiltError(HeadpruneError):
    """No tiny model of a type could be made to run."""


class _TooLargeError(Exception):
    """A model that stayed large although every known size was made small."""


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
            cls = getattr(transformers, name, None)
            if cls is not None and _is_for(cls, model_type):
                return cls
    return None


def _is_for(cls: Any, model_type: str) -> bool:
    """Whether a class takes the whole config: some types are listed with the class of their text part."""
    from transformers import CONFIG_MAPPING

    try:
        takes = getattr(cls, "config_class", None)
    except ImportError:  # a stand-in for a class that needs another package: building it will say so
        return True
    return takes is None or issubclass(CONFIG_MAPPING[model_type], takes)


def build(model_type: str, *, seed: int = 0, attention: str | None = None) -> Built:
    """A tiny model that runs, with weights large enough that every head matters."""
    problems: list[str] = []  # of the sizes tried, the usual ones first
    for config in _configs(model_type, problems):
        if attention is not None:
            config._attn_implementation = attention
        torch.manual_seed(seed)
        try:
            return _built(class_of(model_type)(config), seed)
        except _TooLargeError as error:
            raise NotBuiltError(str(error)) from error
        except ImportError as error:
            raise NotBuiltError(f"needs a package that is not installed: {_short(error)}") from error
        except Exception as error:  # whatever a family stumbles over with these sizes
            problems.append(_short(error))
    refusal = NotBuiltError(f"no tiny model that runs on an example could be made: {problems[0]}")
    for problem in dict.fromkeys(problems[1:]):
        refusal.add_note(problem)
    raise refusal


def _built(model: nn.Module, seed: int) -> Built:
    size = sum(p.numel() for p in model.parameters())
    if size > LARGEST:
        raise _TooLargeError(
            f"with the sizes that headprune knows how to set it still has {size / 1e6:.0f} M parameters"
        )
    enlarge_(model, seed)
    batch = example_inputs(model.eval())
    with torch.no_grad():
        run(model, batch)  # which leaves it as it is
    return Built(model, batch)


def tiny_config(model_type: str, **more: Any) -> Any:
    """The smallest config of a type that is tried first, with other settings if wanted."""
    from transformers import CONFIG_MAPPING

    return _shrunk(CONFIG_MAPPING[model_type], {}, {**ODD.get(model_type, {}), **more})


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
    inner = {name: value_of(default, name) for name in getattr(cls, "sub_configs", {})}
    sizes = _sizes(cls, default, variant)
    for name, config in inner.items():
        if config is not None and "model_type" not in odd.get(name, {}):  # else another kind of part is asked for
            kind = cls.sub_configs[name] if isinstance(config, dict) else type(config)
            sizes[name] = _shrunk(kind, variant, odd.get(name, {}))
    return cls(**{**sizes, **{name: value for name, value in odd.items() if name not in inner or name not in sizes}})


def _sizes(cls: Any, default: Any, variant: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the small sizes that a config has a name for."""
    known = {*default.to_dict(), *vars(default), *getattr(cls, "attribute_map", {})}
    sizes: dict[str, Any] = {}
    for name, value in {**SMALL, **variant}.items():
        current = value_of(default, name)
        if name not in known or isinstance(current, bool) or _is_computed(cls, name):
            continue
        if name == "num_key_value_heads" and current is None:
            continue
        if name == "mrope_section":
            continue
        if isinstance(current, list | tuple):
            if name not in ("image_size", "patch_size"):
                continue
            value = [value] * len(current)
        sizes[name] = value
    if sizes.get("head_dim", 0) is None:
        del sizes["head_dim"]
    sizes |= _stages(default) | _tokens(default) | _rotations(default, known, variant)
    layers = sizes.get("num_hidden_layers", 2)
    for name in KINDS_OF_LAYERS:
        kinds = list(dict.fromkeys(value_of(default, name) or ()))
        if kinds and name in known and not _is_computed(cls, name):
            sizes[name] = (kinds * layers)[:layers]
    return sizes


def _is_computed(cls: Any, name: str) -> bool:
    stored = getattr(cls, "attribute_map", {}).get(name, name)
    return any(isinstance(getattr(cls, each, None), property) for each in (name, stored))


def _stages(default: Any) -> dict[str, Any]:
    """Swin's line: a list of heads, and a width that doubles from stage to stage."""
    heads, depths = value_of(default, "num_heads"), value_of(default, "depths")
    if (
        not isinstance(heads, list | tuple)
        or not isinstance(depths, list | tuple)
        or type(value_of(default, "embed_dim")) is not int
    ):
        return {}
    sizes: dict[str, Any] = {"embed_dim": 16, "depths": [1] * len(depths), "num_heads": [2, 2, 4, 4][: len(depths)]}
    if isinstance(value_of(default, "image_size"), int):
        sizes["image_size"] = 64  # the last of four stages still has more than one position
    if isinstance(value_of(default, "window_size"), int):
        sizes["window_size"] = 2
    return sizes


def _rotations(default: Any, known: set[str], variant: Mapping[str, Any]) -> dict[str, Any]:
    """Rotary positions in time, height and width (M-RoPE) share the small width of a head."""
    rope = value_of(default, "rope_parameters") or {}
    sections = variant.get("mrope_section", [2, 1, 1] if "mrope_section" in rope else None)
    if "rope_parameters" not in known or sections is None or rope.get("rope_type", "default") != "default":
        return {}
    return {"rope_parameters": {"rope_theta": 10000.0, "rope_type": "default", **rope, "mrope_section": sections}}


def _tokens(default: Any) -> dict[str, Any]:
    """Special tokens beyond the small vocabulary get places at its end."""
    names = [name for name in vars(default) if name.endswith(("_token_id", "_token_index")) and name not in SMALL]
    high = [
        name
        for name in names
        if type(value_of(default, name)) is int and value_of(default, name) >= SMALL["vocab_size"]
    ]
    return {name: SMALL["vocab_size"] - 1 - place for place, name in enumerate(high)}


def enlarge_(model: nn.Module, seed: int) -> None:
    """Biases and sinks begin at zero and weights at 0.02: both would hide mistakes."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad and parameter.is_floating_point():  # fixed tables are not saved with the model
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)


def _short(error: Exception) -> str:
    told = str(error) if isinstance(error, HeadpruneError) else f"{type(error).__name__}: {error}"
    return " ".join(told.split())[:240]
