"""A model as ONNX, for runtimes without Python: made by PyTorch's own exporter, then run and compared."""

from __future__ import annotations

import contextlib
import inspect
import io
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from headprune.checkpoint.exports.registry import exports
from headprune.checkpoint.pretrained import ONNX, ONNX_INT8
from headprune.errors import ExampleError, MissingExtraError, UnsupportedModelError, VerificationError
from headprune.structure.dummy_inputs import example_inputs
from headprune.structure.run import difference, eval_mode, takes_use_cache, to_model, unwrapped
from headprune.surgery.prune import refuse_unfit_models, refuse_unpruned_repair
from headprune.types import Batch, Config, Outputs

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

LARGEST_GAP = 1e-4  # between the runtime's answer and PyTorch's


@exports.add(
    "onnx",
    loading="model.onnx is the model for onnxruntime and other runtimes: one forward pass, of any batch and length.",
    weights="*.onnx*",
)
def save_onnx(model: nn.Module, folder: Path, example: Batch | None, *, int8: bool = False) -> None:
    """Write `model.onnx` (and `model.int8.onnx`) with free batch size and length, and the config.

    It takes every input that the model's tokenizer gives. The file's answers are compared with the model's, on the
    example, on one of another shape, and on single texts and pairs as the tokenizer encodes them.
    """
    runtime = _packages()
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
    answering = _Answering(model, tuple(inputs))
    with eval_mode(model), torch.no_grad():
        answering(*inputs.values())
        program = _exported(answering, inputs)
        program.save(str(folder / ONNX))
        session = runtime.InferenceSession(str(folder / ONNX), providers=["CPUExecutionProvider"])
        others = _other_shape(model, inputs) if example is None else _longer(answering, inputs)
        for batch in (inputs, *others, *({name: text[name] for name in inputs} for text in texts)):
            _compare(session, answering, batch)
    if int8:
        _quantise(folder)
        rough = runtime.InferenceSession(str(folder / ONNX_INT8), providers=["CPUExecutionProvider"])
        asked = {node.name for node in rough.get_inputs()}
        (answer,) = rough.run(None, {name: value.cpu().numpy() for name, value in inputs.items() if name in asked})
        if not np.isfinite(answer).all():
            raise VerificationError("The file in 8 bits answers with numbers that are not finite. Nothing was written.")
    config: Config | None = getattr(model, "config", None)
    if config is not None:
        config.save_pretrained(folder)


def _quantise(folder: Path) -> None:
    """Weights as 8-bit integers, activations as they come."""
    import onnx
    from onnxruntime import quantization

    exact = onnx.load(folder / ONNX)
    del exact.graph.value_info[:]  # PyTorch's notes on shapes, which the quantiser's own inference trips over
    with _silence():
        quantization.quantize_dynamic(exact, str(folder / ONNX_INT8))


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


class _Answering(nn.Module):
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


def _exported(answering: _Answering, inputs: Mapping[str, Tensor]) -> torch.onnx.ONNXProgram:
    """By torch.onnx, with the batch and, for tokens, the length left open."""
    free = torch.export.Dim.DYNAMIC
    shapes = tuple({0: free, 1: free} if value.dim() == 2 else {0: free} for value in inputs.values())
    try:
        with _silence():
            program = torch.onnx.export(
                answering, tuple(inputs.values()), dynamo=True, dynamic_shapes=(shapes,), verbose=False,
                input_names=list(inputs), output_names=[answering.answer],
            )  # fmt: skip
    except Exception as error:
        last = str(error).strip().splitlines()[-1:] or [type(error).__name__]
        raise UnsupportedModelError(
            f"PyTorch cannot export {type(answering.model).__name__} to ONNX: {last[0]} Whether it can export the "
            "model before pruning tells whether its heads have to do with it; format='standalone' needs no export."
        ) from error
    assert program is not None, "with dynamo there is one"
    return program


def _other_shape(model: nn.Module, inputs: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
    try:
        made = to_model(model, example_inputs(model, batch=3, length=11, seed=1))
    except ExampleError:
        return []
    made = _with_token_types(model, made, []) if TYPES in inputs else made
    return [{name: made[name] for name in inputs}] if inputs.keys() <= made.keys() else []


def _longer(answering: _Answering, inputs: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
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


def _compare(session: InferenceSession, answering: _Answering, batch: Mapping[str, Tensor]) -> None:
    asked = {node.name for node in session.get_inputs()}  # the exporter leaves out what has no effect
    (found,) = session.run(None, {name: value.cpu().numpy() for name, value in batch.items() if name in asked})
    gap = difference(torch.from_numpy(found), answering(*batch.values()).detach().cpu())
    allowed = LARGEST_GAP * max(1.0, float(np.abs(found).max()))
    if not gap.largest <= allowed:  # also where it is not a number
        raise VerificationError(
            f"The ONNX file answers otherwise than the model (by {gap.largest:.1e}; allowed: {allowed:.0e}) on an "
            f"input of {', '.join(str(tuple(value.shape)) for value in batch.values())}. Nothing was written."
        )


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """The exporters print and warn about their own workings."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def _packages() -> ModuleType:
    try:
        import onnx  # noqa: F401
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(f"ONNX needs {error.name}: pip install 'headprune[onnx]'.") from error
    found: ModuleType = onnxruntime
    return found
