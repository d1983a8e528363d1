"""A model as ONNX, for runtimes without Python: made by PyTorch's own exporter, then run and compared."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from headprune.checkpoint.exports.one_pass import OnePass, one_pass
from headprune.checkpoint.exports.registry import exports
from headprune.checkpoint.pretrained import ONNX, ONNX_INT8
from headprune.errors import MissingExtraError, UnsupportedModelError, VerificationError
from headprune.structure.run import eval_mode, unwrapped
from headprune.types import Batch, Config

if TYPE_CHECKING:
    from onnxruntime import InferenceSession


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
    with eval_mode(model), torch.no_grad():
        once = one_pass(model, example)
        onnx_program(once).save(str(folder / ONNX))
        session = runtime.InferenceSession(str(folder / ONNX), providers=["CPUExecutionProvider"])
        once.compare(lambda batch: _answer(session, batch), "ONNX")
    if int8:
        _quantise(folder)
        rough = runtime.InferenceSession(str(folder / ONNX_INT8), providers=["CPUExecutionProvider"])
        if not np.isfinite(_answer(rough, once.inputs)).all():
            raise VerificationError("The file in 8 bits answers with numbers that are not finite. Nothing was written.")
    config: Config | None = getattr(model, "config", None)
    if config is not None:
        config.save_pretrained(folder)


def _answer(session: InferenceSession, batch: Mapping[str, Tensor]) -> np.ndarray:
    asked = {node.name for node in session.get_inputs()}  # the exporter leaves out what has no effect
    (found,) = session.run(None, {name: value.cpu().numpy() for name, value in batch.items() if name in asked})
    answer: np.ndarray = found
    return answer


def _quantise(folder: Path) -> None:
    """Weights as 8-bit integers, activations as they come."""
    import onnx
    from onnxruntime import quantization

    exact = onnx.load(folder / ONNX)
    del exact.graph.value_info[:]  # PyTorch's notes on shapes, which the quantiser's own inference trips over
    with silence():
        quantization.quantize_dynamic(exact, str(folder / ONNX_INT8))


def onnx_program(once: OnePass) -> torch.onnx.ONNXProgram:
    """By torch.onnx, with the batch and, for tokens, the length left open."""
    answering, inputs = once.answering, once.inputs
    free = torch.export.Dim.DYNAMIC
    shapes = tuple({0: free, 1: free} if value.dim() == 2 else {0: free} for value in inputs.values())
    try:
        with silence():
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


@contextlib.contextmanager
def silence() -> Iterator[None]:
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
