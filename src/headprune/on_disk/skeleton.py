"""A model without weights, into which those of one layer are put from a checkpoint on disk, and taken out again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headprune.checkpoint import config_entry
from headprune.checkpoint.load_model import cannot_load, model_class, quiet_transformers
from headprune.checkpoint.shards import Shards
from headprune.errors import CheckpointError, HeadpruneError, UnsupportedModelError
from headprune.hooks import NotAStackError
from headprune.structure.dummy_inputs import example_inputs
from headprune.structure.equal_layers import EqualLayers, layer_paths
from headprune.structure.find import ModelStructure, structure_of_firsts


@dataclass
class Skeleton:
    """The model of a checkpoint: everything but its layers is mapped from the disk, layers are empty."""

    folder: Path
    model: nn.Module
    shards: Shards
    dtype: torch.dtype
    equal: EqualLayers
    structure: ModelStructure

    @classmethod
    def of(cls, folder: Path, *, trust_remote_code: bool = False) -> Skeleton:
        model, dtype = empty_model(folder, trust_remote_code=trust_remote_code)
        shards = Shards(folder)
        for key in shards.place:
            shards.dtype(key)
        try:
            equal = EqualLayers.of_stack(model_with_rest(model, shards, dtype), example_inputs(model))
        except NotAStackError as error:
            raise UnsupportedModelError(
                f"{type(model).__name__} cannot be streamed: {error}. Load it as a whole (without --stream)."
            ) from error
        equal = EqualLayers(equal.paths, equal.like, equal.as_tuple, is_all_there_is=True)
        found = cls(folder, model, shards, dtype, equal, structure=None)  # type: ignore[arg-type]
        missing = found.missing()
        for path in equal.firsts:
            found.fill_(path, by_chance=True)
        try:
            found.structure = structure_of_firsts(model, equal)
        finally:
            for path in equal.firsts:
                found.empty_(path)
        found.not_stored = missing
        return found

    not_stored: tuple[str, ...] = ()  # weights of layers that the files have under other names: made while loading

    def missing(self) -> tuple[str, ...]:
        return tuple(
            name
            for path in self.equal.paths
            for name in names_in(self.model, path)
            if key_of(self.model, name, self.shards) is None
        )

    def check_runs(self) -> None:
        """Refuse a model whose layers cannot be run from the disk."""
        if self.not_stored:
            raise UnsupportedModelError(
                f"{type(self.model).__name__} cannot be run from the disk: its files have {self.not_stored[0]} in "
                "another form, which is changed while it is loaded. A mask alone can be applied (prune --mask "
                "--stream); for the rest load it as a whole (without --stream)."
            )

    def fill_(self, path: str, *, copied: bool = False, by_chance: bool = False) -> None:
        """Put the weights of a layer in; `copied`, so that they may be written to. `by_chance`: what is not stored as
        it is gets random numbers, which say as much of what belongs to what."""
        for name in names_in(self.model, path):
            key = key_of(self.model, name, self.shards)
            if key is None:
                assert by_chance, "checked before"
                old = tensor_at(self.model, name)
                value = torch.randn(old.shape, generator=torch.Generator().manual_seed(0)).to(self.dtype) * 0.02
            else:
                value = self.read(name, key)
                value = value.clone() if copied else value
            _put(self.model, name, value)

    def read(self, name: str, key: str) -> Tensor:
        value, expected = self.shards.tensor(key), tensor_at(self.model, name)
        if tuple(value.shape) != tuple(expected.shape):
            raise CheckpointError(
                f"'{key}' has the shape {tuple(value.shape)}; the config of '{self.folder}' says "
                f"{tuple(expected.shape)}. Config and weights are of different models."
            )
        return value.to(expected.dtype) if value.is_floating_point() else value

    def empty_(self, path: str) -> None:
        """Let go of a layer's weights; their shapes stay."""
        for name in names_in(self.model, path):
            value = tensor_at(self.model, name)
            _put(self.model, name, torch.empty(value.shape, dtype=value.dtype, device="meta"))

    @contextmanager
    def filled(self, path: str, *, copied: bool = False) -> Iterator[nn.Module]:
        self.fill_(path, copied=copied)
        try:
            yield self.model.get_submodule(path)
        finally:
            self.empty_(path)

    def largest_layer(self) -> int:
        """Bytes."""
        return max(
            sum(tensor_at(self.model, name).numel() for name in names_in(self.model, path)) * self.dtype.itemsize
            for path in self.equal.paths
        )


def empty_model(folder: Path, *, trust_remote_code: bool = False) -> tuple[nn.Module, torch.dtype]:
    """The model that a config tells of, without weights; tables that are computed are there."""
    import transformers

    quiet_transformers()
    if not folder.is_dir():
        raise CheckpointError(f"'{folder}' is no folder: a model on the hub is streamed after it was downloaded.")
    try:
        config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
        dtype = getattr(config, "dtype", None) or torch.float32
        with torch.device("meta"):
            model: Any = model_class(config)._from_config(config, dtype=dtype).eval()
    except HeadpruneError:
        raise
    except Exception as error:  # whatever a damaged or foreign folder makes transformers stumble over
        raise cannot_load(str(folder), error) from error
    if getattr(config, "quantization_config", None) is not None:
        raise UnsupportedModelError("A quantised checkpoint cannot be streamed: prune the unquantised one.")
    if config_entry.read(model) is not None:
        raise UnsupportedModelError("A pruned checkpoint cannot be streamed again: load it as a whole.")
    for module in model.modules():
        if any(buffer is not None and buffer.is_meta for buffer in module._buffers.values()):
            for name, buffer in list(module._buffers.items()):
                if buffer is not None:
                    module._buffers[name] = torch.empty(buffer.shape, dtype=buffer.dtype, device="cpu")
            model._init_weights(module)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    return model, dtype


def model_with_rest(model: nn.Module, shards: Shards, dtype: torch.dtype) -> nn.Module:
    """The model with everything but its layers: embeddings, norms, the words at the end."""
    layers = layer_paths(model)
    ties: dict[str, str] = getattr(model, "all_tied_weights_keys", None) or {}
    get = getattr(model, "get_output_embeddings", None)
    words = get() if callable(get) else None  # nobody asks for words here: they stay on the disk
    unasked = [f"{path}." for path, module in model.named_modules() if module is words]
    for name in names_in(model, ""):
        if any(name.startswith(f"{path}.") for path in layers) or name.startswith(tuple(unasked)):
            continue
        key = key_of(model, name, shards) or key_of(model, ties.get(name, name), shards)
        if key is None:
            raise CheckpointError(
                f"The checkpoint has no '{name}'. A file of it is missing, or it is of another model."
            )
        value = shards.tensor(key)
        _put(model, name, value.to(tensor_at(model, name).dtype) if value.is_floating_point() else value)
    return model


def key_of(model: nn.Module, name: str, shards: Shards) -> str | None:
    """Under which name the files have a weight: with or without the base model's prefix."""
    prefix = config_entry.base_prefix(model)
    for key in (name, name.removeprefix(prefix), f"{prefix}{name}"):
        if key in shards.place:
            return key
    return None


def names_in(model: nn.Module, path: str) -> list[str]:
    """Weights (and tables that are stored) inside a module."""
    module = model.get_submodule(path) if path else model
    prefix = f"{path}." if path else ""
    buffers = {
        f"{inner}.{name}".removeprefix(".")
        for inner, part in module.named_modules()
        for name in part._buffers
        if name not in part._non_persistent_buffers_set
    }
    parameters = [name for name, _ in module.named_parameters(remove_duplicate=False)]
    return [prefix + name for name in (*parameters, *sorted(buffers))]


def tensor_at(model: nn.Module, name: str) -> Tensor:
    path, _, last = name.rpartition(".")
    module = model.get_submodule(path)
    found = module._parameters[last] if last in module._parameters else module._buffers[last]
    assert found is not None, "named by what is there"
    return found


def _put(model: nn.Module, name: str, value: Tensor) -> None:
    path, _, last = name.rpartition(".")
    module = model.get_submodule(path)
    if last in module._parameters:
        module._parameters[last] = nn.Parameter(value, requires_grad=False)
    else:
        module._buffers[last] = value
