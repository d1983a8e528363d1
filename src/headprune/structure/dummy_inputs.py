"""What a model takes, made at random from its forward signature and its config: text, pictures, sound, series."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from itertools import chain
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from headprune.errors import ExampleError
from headprune.structure.run import eval_mode, kept_draws, same_attributes, same_draws, to_model
from headprune.types import Batch, Config, Kwargs

Inputs: TypeAlias = Kwargs
IMAGE, FRAMES = 64, 2  # where a config does not say how large a picture or how long a film is
SAMPLES, MEL_FRAMES = 1600, 64
TEXT_ONLY = ("input_ids", "attention_mask", "decoder_input_ids", "bbox", "mm_token_type_ids")


class InputMaker:
    """Batches for one model, the fullest first: every kind of input that it takes, then its text alone."""

    def __init__(self, model: nn.Module, config: Config, batch: int, length: int, seed: int) -> None:
        self.model, self.config, self.batch, self.length = model, config, batch, length
        parameters = inspect.signature(model.forward).parameters.values()
        self.accepted = [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        self.required = {p.name for p in parameters if p.default is p.empty and p.name in self.accepted}
        self.generator = torch.Generator().manual_seed(seed)

    def batches(self) -> Iterator[Inputs]:
        """One after the other until the model takes one."""
        last: set[str] = set()
        for picture in self.pictures():
            for sound in self.sounds():
                made = {**picture, **sound, **self.series(), **self.others()}
                if "input_ids" in self.accepted and self.vocabulary() is not None:
                    made |= self.choices(self.text(made))
                if made and self.is_encoder_decoder() and "decoder_input_ids" in self.accepted:
                    made |= self.target(made)
                last = set(made)
                yield made
        alone = {name: value for name, value in made.items() if name in TEXT_ONLY}
        if "input_ids" in alone and set(alone) != last:
            yield {**alone, **self.text({})}

    def is_encoder_decoder(self) -> bool:
        return bool(self.setting("is_encoder_decoder"))

    def target(self, made: Inputs) -> Inputs:
        """What the decoder reads: a text of another length than the source. A classifier makes it from the source, and
        looks where that ends."""
        end = self.setting("eos_token_id")
        if not type(self.model).__name__.endswith("ForSequenceClassification") or not isinstance(end, int):
            return {"decoder_input_ids": self.tokens(self.length - 2)}
        ids = made["input_ids"].clone()  # without special tokens so far
        ids[:, -1] = end
        return {"input_ids": ids}

    def choices(self, text: Inputs) -> Inputs:
        """Two texts for each example, where one of several is to be chosen: (batch, choices, length)."""
        if not type(self.model).__name__.endswith("ForMultipleChoice"):
            return text
        return {name: torch.stack([value, value.flip(0)], 1) for name, value in text.items()}

    def setting(self, *names: str) -> Any:
        """The first of these that the config, or a config inside it, gives a value."""
        for name in names:
            for config in with_inner(self.config):
                value = value_of(config, name)
                if value is not None:
                    return value
        return None

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator)

    # Text

    def text(self, others: Inputs) -> Inputs:
        """Tokens, with a place for every picture feature that goes among them."""
        ids = self.tokens()
        if (holder := self.setting("image_token_id", "image_token_index")) is not None:
            count = self.picture_features(others)
            if count:
                ids = torch.cat([torch.full((self.batch, count), int(holder)), ids], 1)
        made: Inputs = {"input_ids": ids}
        if "mm_token_type_ids" in self.accepted:
            made["mm_token_type_ids"] = (ids == holder).long() if holder is not None else torch.zeros_like(ids)
        if "attention_mask" in self.accepted:
            made["attention_mask"] = torch.ones_like(ids)
        if "bbox" in self.accepted:
            corners = torch.randint(0, 20, (*ids.shape, 4), generator=self.generator)
            made["bbox"] = corners.sort(-1).values[..., [0, 1, 2, 3]]  # left, top, right, bottom
        return made

    def vocabulary(self) -> int | None:
        size = self.setting("vocab_size", "num_hash_buckets", "vocab_sizes")
        return int(size[0] if isinstance(size, list | tuple) else size) if size is not None else None

    def tokens(self, length: int | None = None) -> Tensor:
        """Random token ids that are not special, one end-of-sequence token last."""
        size = self.vocabulary() or 2
        special: set[object] = set()
        for config in with_inner(self.config):
            for name in vars(config):
                if name.endswith(("token_id", "token_index")):
                    value = value_of(config, name)
                    special |= set(value) if isinstance(value, list | tuple) else {value}
        ordinary = torch.tensor([i for i in range(min(size, 1000)) if i not in special] or [0])
        shape = (self.batch, length or self.length)
        ids = ordinary[torch.randint(len(ordinary), shape, generator=self.generator)]
        end = self.setting("eos_token_id")
        if self.setting("image_size") is not None and isinstance(end, int) and 0 <= end < size:
            ids[:, -1] = end  # text towers that pool at the end-of-sequence token look for it
        return ids

    def picture_features(self, others: Inputs) -> int:
        """How many places in the text an example's picture takes, as the model itself says."""
        features = getattr(self.model, "get_image_features", None)
        if features is None or "pixel_values" not in others:
            return 0
        takes = inspect.signature(features).parameters
        given = {name: value for name, value in others.items() if name in takes}
        weight = next(self.model.parameters())
        try:
            with torch.no_grad(), same_attributes(self.model):
                found = features(**{n: v.to(weight.device) if isinstance(v, Tensor) else v for n, v in given.items()})
        except Exception:  # the model will not take the picture either, and then it gets text alone
            return 0
        found = getattr(found, "pooler_output", found)
        found = torch.cat(list(found)) if isinstance(found, list | tuple) else found
        return found.numel() // found.shape[-1] // self.batch if isinstance(found, Tensor) else 0

    # Pictures and films

    def pictures(self) -> Iterator[Inputs]:
        name = next((n for n in ("pixel_values", "pixel_values_videos") if n in self.accepted), None)
        if {"grid_thw", "image_grid_thw"} & set(self.accepted):
            yield from self.patches()
        elif name == "pixel_values_videos":
            yield {name: self.pixels(FRAMES)}
        elif name is not None and "spatial_shapes" in self.accepted:
            yield self.packed_patches()
        elif name is not None:
            frames = self.setting("num_frames", "num_image_with_embedding")
            if frames is not None:
                yield {name: self.pixels(int(frames))}
            yield {name: self.pixels()}
            if frames is None:
                yield {name: self.pixels(1)}  # some take several pictures for an example
        else:
            yield {}

    def pixels(self, frames: int | None = None) -> Tensor:
        size = self.setting("image_size", "crop_size") or IMAGE
        height, width = size if isinstance(size, list | tuple) else (size, size)
        channels = self.setting("num_channels", "in_chans", "in_channels") or 3
        channels = channels if isinstance(channels, int) else channels[0]
        films = () if frames is None else (frames,)
        return self.normal(self.batch, *films, channels, int(height), int(width))

    def patches(self) -> Iterator[Inputs]:
        """Pictures cut into flat patches, with their grid (Qwen-VL and those after it)."""
        merge = int(self.setting("spatial_merge_size") or self.setting("merge_size") or 1)
        side = 2 * merge
        size, times = int(self.setting("patch_size") or 14), int(self.setting("temporal_patch_size") or 1)
        channels = int(self.setting("in_channels", "in_chans", "num_channels") or 3)
        count = self.batch * side * side
        grid = torch.tensor([[1, side, side]] * self.batch)
        grid_name = "grid_thw" if "grid_thw" in self.accepted else "image_grid_thw"
        name = "hidden_states" if "hidden_states" in self.accepted else "pixel_values"
        more: Inputs = {"merge_sizes": torch.full((self.batch,), merge)} if "merge_sizes" in self.accepted else {}
        yield {name: self.normal(count, channels * times * size * size), grid_name: grid, **more}
        yield {name: self.normal(count, channels, size, size), grid_name: grid, **more}

    def packed_patches(self) -> Inputs:
        """Patches of pictures of many shapes (SigLIP 2)."""
        size, channels = int(self.setting("patch_size")), int(self.setting("num_channels") or 3)
        return {
            "pixel_values": self.normal(self.batch, 6, channels * size * size),
            "pixel_attention_mask": torch.ones(self.batch, 6, dtype=torch.long),
            "spatial_shapes": torch.tensor([[2, 3]] * self.batch),
        }

    # Sound

    def sounds(self) -> Iterator[Inputs]:
        if "input_features" in self.accepted:
            yield from self.features()
        elif "audio_mel" in self.accepted:
            mask = torch.zeros(self.batch, MEL_FRAMES, dtype=torch.bool)
            bands = int(self.setting("input_feat_size") or 128)
            yield {"audio_mel": self.normal(self.batch, MEL_FRAMES, bands), "audio_mel_mask": mask}
        elif "input_values" in self.accepted:
            yield from self.waves()
        else:
            yield {}

    def features(self) -> Iterator[Inputs]:
        """Spectrograms, bands first or frames first."""
        bands = int(
            self.setting("num_mel_bins", "feature_projection_input_dim", "input_feat_per_channel", "feature_size")
            or self.setting("input_feat_size", "input_dim") or 128
        )  # fmt: skip
        longest = 2 * int(self.setting("max_source_positions") or MEL_FRAMES // 2)
        for frames in dict.fromkeys((min(longest, MEL_FRAMES), longest)):  # all that it can take: if it insists
            for shape in ((self.batch, bands, frames), (self.batch, frames, bands)):
                made: Inputs = {"input_features": self.normal(*shape)}
                yield {**made, **self.sound_masks(frames)}
                yield made

    def sound_masks(self, frames: int) -> Inputs:
        ones = torch.ones(self.batch, frames, dtype=torch.long)
        names = ["input_features_mask", "feature_attention_mask"]
        names += ["attention_mask"] if "input_ids" not in self.accepted else []
        return {name: ones for name in names if name in self.accepted}

    def waves(self) -> Iterator[Inputs]:
        if (bands := self.setting("num_mel_bins")) is not None:  # spectrograms under the name of waves
            yield {"input_values": self.normal(self.batch, int(self.setting("max_length") or MEL_FRAMES), int(bands))}
        strides = self.setting("conv_stride")
        samples = self.samples(strides) if strides is not None else SAMPLES
        yield {"input_values": self.normal(self.batch, samples)}
        yield {"input_values": self.normal(self.batch, 1, samples)}

    def samples(self, strides: Any) -> int:
        """As many as give about `length` frames after the convolutions."""
        samples = self.length
        for kernel, stride in reversed(list(zip(self.setting("conv_kernel"), strides, strict=True))):
            samples = (samples - 1) * stride + kernel
        return int(samples)

    # Series of numbers, and the rest

    def series(self) -> Inputs:
        if "past_values" not in self.accepted:
            return {}
        lags = self.setting("lags_sequence")
        length = int(self.setting("context_length") or 32) + (max(lags) if lags else 0)
        channels = self.setting("num_input_channels")
        shape = (self.batch, length, int(channels)) if channels else (self.batch, length)
        made: Inputs = {"past_values": self.normal(*shape)}
        for name in ("past_observed_mask", "observed_mask", "past_values_padding"):
            if name in self.required:
                made[name] = torch.ones(shape)
        if "past_time_features" in self.accepted:
            wide = int(self.setting("num_time_features") or 0)
            ahead = int(self.setting("prediction_length") or 4)
            made |= {
                "past_time_features": self.normal(self.batch, length, wide),
                "past_observed_mask": torch.ones(shape),
                "future_values": self.normal(self.batch, ahead),
                "future_time_features": self.normal(self.batch, ahead, wide),
            }
        if "freq" in self.accepted:
            made["freq"] = torch.zeros(self.batch, 1, dtype=torch.long)
        return made

    def others(self) -> Inputs:
        """Inputs that only one or two families have."""
        made: Inputs = {}
        if "flattened_patches" in self.accepted:
            wide = int(self.setting("patch_embed_hidden_size") or 0)
            places = torch.arange(1, 5).repeat(self.batch, 1)[..., None]  # row and column come first
            made["flattened_patches"] = torch.cat([places, places, self.normal(self.batch, 4, wide)], -1)
            made["attention_mask"] = torch.ones(self.batch, 4)
        if "query_embeds" in self.required:
            made["query_embeds"] = self.normal(self.batch, 5, int(self.setting("hidden_size")))
            wide = int(self.setting("encoder_hidden_size") or self.setting("hidden_size"))
            made["encoder_hidden_states"] = self.normal(self.batch, 6, wide)
        if "qformer_input_ids" in self.required:
            made["qformer_input_ids"] = self.tokens()
        if "task_inputs" in self.required:
            made["task_inputs"] = torch.randint(
                1, 9, (self.batch, int(self.setting("task_seq_len"))), generator=self.generator
            )
        if "visual_feats" in self.accepted:
            made["visual_feats"] = self.normal(self.batch, 6, int(self.setting("visual_feat_dim")))
            made["visual_pos"] = torch.rand(
                self.batch, 6, int(self.setting("visual_pos_dim")), generator=self.generator
            )
        if "prompt_pixel_values" in self.required:
            made |= {"prompt_pixel_values": self.pixels(), "prompt_masks": self.pixels()}
        if "returns_to_go" in self.accepted:
            state, action = int(self.setting("state_dim")), int(self.setting("act_dim"))
            steps = torch.arange(self.length).repeat(self.batch, 1)
            made |= {
                "states": self.normal(self.batch, self.length, state),
                "actions": self.normal(self.batch, self.length, action),
                "rewards": self.normal(self.batch, self.length, 1),
                "returns_to_go": self.normal(self.batch, self.length, 1),
                "timesteps": steps,
                "attention_mask": torch.ones(self.batch, self.length, dtype=torch.long),
            }
        return made


def value_of(config: Config, name: str) -> Any:
    """A setting, or None: also where a config refuses to give one value for what varies by layer."""
    try:
        return getattr(config, name, None)
    except (AttributeError, ValueError, KeyError, RuntimeError):
        return None


def with_inner(config: Config) -> Iterator[Any]:
    """A config and, breadth first, the configs inside it."""
    waiting = [config]
    while waiting:
        config = waiting.pop(0)
        yield config
        inner = [value_of(config, name) for name in getattr(type(config), "sub_configs", {})]
        waiting += [one for one in inner if one is not None and not isinstance(one, dict)]


BATCH, LENGTH = 2, 7  # small, and unlike usual head counts, so that dimensions are not mistaken for one another


def example_inputs(model: nn.Module, *, batch: int = BATCH, length: int = LENGTH, seed: int = 0) -> Kwargs:
    """A batch that `model(**batch)` accepts: random tokens, pixels or audio of the right shapes."""
    config = getattr(model, "config", None)
    if config is None:
        raise ExampleError(
            f"{type(model).__name__} has no config to make an example batch from. "
            "Pass one: find_heads(model, example={'input_ids': …})."
        )
    maker = InputMaker(model, config, batch, length, seed)
    with eval_mode(model), kept_draws(model):  # how many places a picture takes is asked of the model
        batches = (inputs for inputs in maker.batches() if inputs and maker.required <= inputs.keys())
        first, second = next(batches, None), next(batches, None)
        if first is None:
            raise ExampleError(
                f"No example batch can be made for {type(model).__name__}: its forward takes "
                f"{', '.join(maker.accepted)}. Pass one: find_heads(model, example={{…}})."
            )
        if second is None:
            return first
        # Several shapes are in use for such inputs: the model itself says which it takes.
        return next((inputs for inputs in chain((first, second), batches) if takes(model, inputs)), first)


def takes(model: nn.Module, inputs: Batch) -> bool:
    try:
        with torch.no_grad(), same_attributes(model), eval_mode(model), same_draws(model):
            model(**to_model(model, inputs))
    except Exception:  # whatever a forward stumbles over
        return False
    return True
