"""A model as one forward pass for another runtime: what goes in, what comes out, and inputs to compare it on."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from headprune.errors import ExampleError, UnsupportedModelError, VerificationError
from headprune.structure.dummy_inputs import example_inputs
from headprune.structure.run import difference, takes_use_cache, to_model, unwrapped
from headprune.surgery.prune import refuse_unfit_models, refuse_unpruned_repair
from headprune.types import Batch, Outputs

LARGEST_GAP = 1e-4  # between the runtime's answer and PyTorch's


@dataclass(frozen=True)
class OnePass:
    """The model as a function of tensors, and inputs: the first is what it is exported with."""

    answering: Answering
    batches: Sequence[Mapping[str, Tensor]]

    @property
    def inputs(self) -> Mapping[str, Tensor]:
        return self.batches[0]

    def compare(self, answer: Callable[[Mapping[str, Tensor]], np.ndarray], runtime: str) -> None:
        """Refuse a file whose answers are not those of the model, on any of the inputs."""
        for batch in self.batches:
            found = answer(batch)
            gap = difference(torch.from_numpy(found), self.answering(*batch.values()).detach().cpu())
            allowed = LARGEST_GAP * max(1.0, float(np.abs(found).max()))
            if not gap.largest <= allowed:  # also where it is not a number
                raise VerificationError(
                    f"The {runtime} file answers otherwise than the model (by {gap.largest:.1e}; allowed: "
                    f"{allowed:.0e}) on an input of {', '.join(str(tuple(value.shape)) for value in batch.values())}. "
                    "Nothing was written."
                )


def one_pass(model: nn.Module, example: Batch | None) -> OnePass:
    """With every input that the model's tokenizer gives; to be compared on the example, on one of another shape, and on
    single texts and pairs as the tokenizer encodes them."""
    model = unwrapped(model)
    refuse_unfit_models(model)
    refuse_unpruned_repair(model)
    if any(parameter.dtype in (torch.float16, torch.bfloat16) for parameter in model.parameters()):
        raise UnsupportedModelError("The model is in half precision, which runtimes on CPUs do not run: model.float().")
    inputs = to_model(model, example if example is not None else example_inputs(model))
    inputs = {name: value for name, value in inputs.items() if isinstance(value, Tensor)}
    if not getattr(getattr(model, "config", None), "is_encoder_decoder", False) or "decoder_input_ids" in inputs:
        inputs.pop("labels", None)  # who runs the file has none; some decoders make their inputs from them
    texts = _tokenized(model, inputs)
    inputs = _with_token_types(model, inputs, texts)
    answering = Answering(model, tuple(inputs))
    with torch.no_grad():
        answering(*inputs.values())
        others = _other_shape(model, inputs) if example is None else _longer(answering, inputs)
    return OnePass(answering, [inputs, *others, *({name: text[name] for name in inputs} for text in texts)])


TYPES = "token_type_ids"
TEXTS = ["Heads of attention.", "They look at other words, each in its own way, and some can go."]


def _tokenized(model: nn.Module, inputs: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
    """Single texts and pairs, as the tokenizer beside the model encodes them, with what else the model is given."""
    place = str(getattr(getattr(model, "config", None), "_name_or_path", ""))
    if "input_ids" not in inputs or not place:
        return []
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(place, local_files_only=True)
        encoded = [tokenizer(TEXTS, padding=True, return_tensors="pt")]
        if TYPES in inspect.signature(model.forward).parameters:
            encoded.append(tokenizer(TEXTS, TEXTS[::-1], padding=True, return_tensors="pt"))
    except Exception:  # none there, or one that needs another kind of text: the made example has to do
        return []
    batches = []
    for text in encoded:
        given = {name: value for name, value in text.items() if name in inspect.signature(model.forward).parameters}
        rest = {name: value[:2] for name, value in inputs.items() if name not in given and "decoder" in name}
        batches.append(to_model(model, {**rest, TYPES: torch.zeros_like(given["input_ids"]), **given}))
    return [batch for batch in batches if inputs.keys() <= batch.keys()]


def _with_token_types(
    model: nn.Module, inputs: Mapping[str, Tensor], texts: Sequence[Mapping[str, Tensor]]
) -> dict[str, Tensor]:
    """The example with a type for each token, where the model tells first texts from second ones."""
    takes = inspect.signature(model.forward).parameters
    kinds = getattr(getattr(model, "config", None), "type_vocab_size", 0) or 0
    given = any(bool(text[TYPES].any()) for text in texts)
    if TYPES in inputs or TYPES not in takes or "input_ids" not in inputs or not (kinds > 1 or given):
        return dict(inputs)
    types = torch.zeros_like(inputs["input_ids"])
    types[..., types.shape[-1] // 2 :] = 1
    return {**inputs, TYPES: types}


class Answering(nn.Module):
    """The model as a function of tensors in a fixed order, with one tensor as its answer."""

    def __init__(self, model: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = model, names
        self.more = {"use_cache": False} if takes_use_cache(model) else {}
        self.answer = ""

    def forward(self, *values: Tensor) -> Tensor:
        output: Outputs | Tensor = self.model(**dict(zip(self.names, values, strict=True)), **self.more)
        if isinstance(output, Tensor):
            self.answer = "output"
            return output
        for name in ("logits", "last_hidden_state"):
            if hasattr(output, "get") and isinstance(output.get(name), Tensor):
                self.answer = name
                found: Tensor = output[name]
                return found
        self.answer = "output"
        first: Tensor = output[0]
        return first


def _other_shape(model: nn.Module, inputs: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
    try:
        made = to_model(model, example_inputs(model, batch=3, length=11, seed=1))
    except ExampleError:
        return []
    made = _with_token_types(model, made, []) if TYPES in inputs else made
    return [{name: made[name] for name in inputs}] if inputs.keys() <= made.keys() else []


def _longer(answering: Answering, inputs: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
    """The user's own example with its first row once more, where the model takes that."""
    rows = {len(value) if value.dim() else 0 for value in inputs.values()}
    if len(rows) != 1 or 0 in rows:
        return []
    batch = {name: torch.cat([value, value[:1]]) for name, value in inputs.items()}
    try:
        answering(*batch.values())
    except Exception:  # whatever the model's code says to another number of rows
        return []
    return [batch]
