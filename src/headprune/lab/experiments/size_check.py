"""Whether a preset at the paper's scale can be built: models of the true shape, their size, two steps."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headprune.errors import PresetError
from headprune.lab.experiments.placeholders import filled
from headprune.lab.experiments.presets import Preset, Step

NEAR = 0.005  # how far a number of parameters may be from a published one, which has three digits


@dataclass(frozen=True)
class Checked:
    """One model of a preset."""

    step: str
    model: str
    parameters: int
    layers: int  # without vectors of tokens and distances, and without the softmax
    published: float | None  # of the layers
    losses: tuple[float, float]  # of the two steps

    @property
    def agrees(self) -> bool | None:
        """Whether the size is the published one; None where the paper gives none."""
        return None if self.published is None else abs(self.layers - self.published) <= NEAR * self.published

    def message(self) -> str:
        known = "" if self.published is None else f" (paper: {self.published / 1e6:g} M)"
        return (
            f"{self.step}: {self.model}, {self.parameters / 1e6:.1f} M parameters, {self.layers / 1e6:.1f} M in its "
            f"layers{known}; two steps taken"
        )

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "losses": list(self.losses), "agrees": self.agrees}


def check_all(presets: Sequence[Preset]) -> dict[str, list[Checked]]:
    """By preset; a model that several train is built once, and presets that train none from the start are left out."""
    seen: dict[str, Checked] = {}
    found = {preset.name: _found(preset, seen) for preset in presets}
    return {name: models for name, models in found.items() if models}


def _found(preset: Preset, seen: dict[str, Checked]) -> list[Checked]:
    checked = []
    for step in preset.scale("paper").steps:
        for values in step.combinations() if _trains(step) else ():
            key = _likeness(step, values)
            if key not in seen and (model := _model(step, values)) is not None:
                seen[key] = _checked(step, values, model)
            if key in seen:
                checked.append(replace(seen[key], step=_named(step, values), published=step.published))
    return checked


def check(preset: Preset) -> list[Checked]:
    """Build every model that the paper's scale trains from the start, and take two steps with each."""
    found = _found(preset, {})
    if not found:
        raise PresetError(
            f"{preset.name} trains no model from the start at the paper's scale: there is nothing to build."
        )
    return found


def models_of(preset: Preset, step: str) -> list[Any]:
    """New models of one step, at the paper's scale."""
    return [model for one in preset.scale("paper").steps if one.name == step for _, model in _models(one)]


def _models(step: Step) -> Iterator[tuple[Mapping[str, Any], Any]]:
    """What a step trains from the start, for each combination of its values."""
    for values in step.combinations() if _trains(step) else ():
        if (model := _model(step, values)) is not None:
            yield values, model


def _trains(step: Step) -> bool:
    """From the start; which heads a mask leaves, an earlier step decides."""
    return step.command in _MODELS and "mask" not in step.options


def _model(step: Step, values: Mapping[str, Any]) -> Any:
    options = {name: filled(value, values) for name, value in step.options.items()}
    return _MODELS[step.command](step, options)


def _likeness(step: Step, values: Mapping[str, Any]) -> str:
    """The same for steps whose models have the same shape."""
    shape = ("preset", "by", "kind", "width", "persistent")
    options = {name: filled(value, values) for name, value in step.options.items() if name in shape}
    return json.dumps([step.command, list(step.arguments), options], sort_keys=True)


def _named(step: Step, values: Mapping[str, Any]) -> str:
    return " ".join([step.name, *(f"{key}={value}" for key, value in values.items())])


def _checked(step: Step, values: Mapping[str, Any], model: Any) -> Checked:
    import torch

    embeddings = {id(p) for part in _surroundings(model) for p in part.parameters()}
    layers = sum(p.numel() for p in model.parameters() if id(p) not in embeddings)
    batch = _batch(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(2):
        optimizer.zero_grad()
        loss = model.train()(**batch).loss
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    if not all(math.isfinite(value) for value in losses):
        raise PresetError(f"The model of '{step.name}' does not train: its losses are {losses}.")
    total = sum(p.numel() for p in model.parameters())
    return Checked(_named(step, values), type(model).__name__, total, layers, step.published, (losses[0], losses[1]))


def _surroundings(model: Any) -> list[Any]:
    """What stands around the layers."""
    parts = [model.get_input_embeddings(), model.get_output_embeddings(), getattr(model.base_model, "distances", None)]
    return [part for part in parts if part is not None]


def _batch(model: Any) -> dict[str, Any]:
    """A few made-up tokens; the labels are such that every model has a loss."""
    import torch

    from headprune.structure.dummy_inputs import example_inputs

    batch = example_inputs(model, batch=2, length=16)
    if "decoder_input_ids" in batch:
        batch["labels"] = batch.pop("decoder_input_ids")
    elif getattr(model.config, "num_labels", 0) and "Classification" in type(model).__name__:
        batch["labels"] = torch.tensor([0, 1])
    else:
        batch["labels"] = batch["input_ids"]
    return batch


class _Symbols:
    """As much of a tokenizer as a new model asks for."""

    pad_token_id, bos_token_id, eos_token_id = 0, 1, 2

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size


def _translator(step: Step, options: Mapping[str, Any]) -> Any:
    from headprune.tasks.translation.presets import PRESETS, new_translator

    shape = PRESETS[options["preset"]].shape
    return new_translator(shape, _Symbols(shape.vocabulary), seed=0)


def _writer(step: Step, options: Mapping[str, Any]) -> Any:
    from headprune.tasks.text.presets import PRESETS, new_language_model

    sizes = {name: options[name] for name in ("kind", "width", "persistent") if name in options}
    shape = replace(PRESETS[options["preset"]].shape, **sizes)
    return new_language_model(shape, _Symbols(267_735 if options["by"] == "words" else 27), seed=0)


def _classifier(step: Step, options: Mapping[str, object]) -> Any:
    """BERT-base, which is what transformers' config has by default; other starts are other trials' models."""
    if step.arguments != ("google-bert/bert-base-uncased",):
        return None
    import transformers

    return transformers.BertForSequenceClassification(transformers.BertConfig(num_labels=3))


_MODELS: dict[str, Callable[[Step, Mapping[str, Any]], Any]] = {
    "train-mt": _translator,
    "train-lm": _writer,
    "finetune": _classifier,
}
