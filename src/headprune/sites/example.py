"""An example batch for a model, made from its forward signature and its config."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from headprune.errors import ExampleError

BATCH, LENGTH = 2, 7  # small, and unlike usual head counts, so that dimensions are not mistaken for one another


def example_inputs(model: nn.Module, *, batch: int = BATCH, length: int = LENGTH, seed: int = 0) -> dict[str, Any]:
    """A batch that `model(**batch)` accepts: random tokens, pixels or audio of the right shapes."""
    config = getattr(model, "config", None)
    if config is None:
        raise ExampleError(
            f"{type(model).__name__} has no config to make an example batch from. "
            "Pass one: find_heads(model, example={'input_ids': …})."
        )
    maker = _Maker(model, config, batch, length, seed)
    inputs = maker.inputs()
    if not inputs:
        raise ExampleError(
            f"No example batch can be made for {type(model).__name__}: its forward takes {', '.join(maker.accepted)}. "
            "Pass one: find_heads(model, example={…})."
        )
    return inputs


def to_model(model: nn.Module, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The batch on the model's device, floating-point inputs in its dtype."""
    weight = next((p for p in model.parameters() if p.is_floating_point()), None)
    if weight is None:
        return dict(inputs)
    moved = {}
    for name, value in inputs.items():
        if isinstance(value, Tensor):
            value = value.clone() if value.is_inference() else value  # made in inference mode: autograd refuses it
            value = value.to(weight.device)
            if value.is_floating_point():
                value = value.to(weight.dtype)
        moved[name] = value
    return moved


class _Maker:
    def __init__(self, model: nn.Module, config: Any, batch: int, length: int, seed: int) -> None:
        self.model, self.config, self.batch, self.length = model, config, batch, length
        self.generator = torch.Generator().manual_seed(seed)
        self.accepted = [name for name in inspect.signature(model.forward).parameters if name not in ("args", "kwargs")]

    def inputs(self) -> dict[str, Any]:
        made: dict[str, Any] = {}
        if "pixel_values" in self.accepted and self.setting("image_size") is not None:
            made["pixel_values"] = self.pixels()
        if "input_features" in self.accepted and self.setting("num_mel_bins") is not None:
            made["input_features"] = self.spectrogram()
        if "input_values" in self.accepted and self.setting("conv_stride") is not None:
            made["input_values"] = self.waveform()
        if "input_ids" in self.accepted and self.setting("vocab_size") is not None:
            made["input_ids"] = self.tokens()
            if "attention_mask" in self.accepted:
                made["attention_mask"] = torch.ones_like(made["input_ids"])
        if made and self.is_encoder_decoder() and "decoder_input_ids" in self.accepted:
            made["decoder_input_ids"] = self.tokens(self.length - 2)  # another length than the source's
        return made

    def is_encoder_decoder(self) -> bool:
        return bool(getattr(self.config, "is_encoder_decoder", False))

    def setting(self, name: str) -> Any:
        """A value of the config or of the first sub-config that has it."""
        value = getattr(self.config, name, None)
        if value is not None:
            return value
        for sub in getattr(type(self.config), "sub_configs", {}):
            value = getattr(getattr(self.config, sub, None), name, None)
            if value is not None:
                return value
        return None

    def tokens(self, length: int | None = None) -> Tensor:
        """Random token ids that are not special, one end-of-sequence token last."""
        size = int(self.setting("vocab_size"))
        names = ("pad_token_id", "bos_token_id", "eos_token_id", "mask_token_id", "decoder_start_token_id")
        special: set[int] = set()
        for name in names:
            value = self.setting(name)
            special |= set(value) if isinstance(value, list | tuple) else {value}
        ordinary = torch.tensor([i for i in range(min(size, 1000)) if i not in special] or [0])
        shape = (self.batch, length or self.length)
        ids = ordinary[torch.randint(len(ordinary), shape, generator=self.generator)]
        end = self.setting("eos_token_id")
        if self.setting("image_size") is not None and isinstance(end, int) and 0 <= end < size:
            ids[:, -1] = end  # text towers that pool at the end-of-sequence token look for it
        return ids

    def pixels(self) -> Tensor:
        size = self.setting("image_size")
        height, width = size if isinstance(size, list | tuple) else (size, size)
        channels = self.setting("num_channels") or 3
        return torch.randn(self.batch, channels, height, width, generator=self.generator)

    def spectrogram(self) -> Tensor:
        frames = 2 * int(self.setting("max_source_positions") or 50)
        return torch.randn(self.batch, int(self.setting("num_mel_bins")), frames, generator=self.generator)

    def waveform(self) -> Tensor:
        """As many samples as give about `length` frames after the convolutions."""
        samples = self.length
        for kernel, stride in reversed(
            list(zip(self.setting("conv_kernel"), self.setting("conv_stride"), strict=True))
        ):
            samples = (samples - 1) * stride + kernel
        return torch.randn(self.batch, samples, generator=self.generator)
