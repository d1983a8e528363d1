"""A model for OpenVINO: made of its ONNX form by OpenVINO's own converter, then run and compared."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from headprune.checkpoint.exports.one_pass import one_pass
from headprune.checkpoint.exports.onnx import onnx_program, silence
from headprune.checkpoint.exports.registry import exports
from headprune.errors import MissingExtraError, VerificationError
from headprune.structure.run import eval_mode, unwrapped
from headprune.types import Batch, Config

if TYPE_CHECKING:
    from openvino import CompiledModel

MODEL, MODEL_INT8 = "openvino_model.xml", "openvino_model.int8.xml"  # the first is what optimum-intel calls it


@exports.add(
    "openvino",
    loading="openvino_model.xml is the model for OpenVINO: one forward pass, of any batch and length.",
    weights="openvino_model*.bin",
)
def save_openvino(model: nn.Module, folder: Path, example: Batch | None, *, int8: bool = False) -> None:
    """Write `openvino_model.xml` with its weights in float32 (and `openvino_model.int8.xml`, by nncf), and the config.

    The file's answers are compared with the model's on the inputs on which an ONNX file is.
    """
    openvino = _packages(int8=int8)
    model = unwrapped(model)
    with eval_mode(model), torch.no_grad():
        once = one_pass(model, example)
        between = folder / "between.onnx"
        onnx_program(once).save(str(between))
        converted = openvino.Core().read_model(between)  # as convert_model does, which tells its makers of it
        openvino.save_model(converted, folder / MODEL, compress_to_fp16=False)
        del converted
        between.unlink()
        for data in folder.glob("between.onnx*"):
            data.unlink()
        exact = _opened(openvino, folder / MODEL)
        once.compare(lambda batch: _answer(exact, batch), "OpenVINO")
    if int8:
        _quantise(openvino, folder)
        if not np.isfinite(_answer(_opened(openvino, folder / MODEL_INT8), once.inputs)).all():
            raise VerificationError("The file in 8 bits answers with numbers that are not finite. Nothing was written.")
    config: Config | None = getattr(model, "config", None)
    if config is not None:
        config.save_pretrained(folder)


def _opened(openvino: Any, file: Path) -> CompiledModel:
    """Computing in float32, also where the processor has something faster."""
    found: CompiledModel = openvino.Core().compile_model(file, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return found


def _answer(compiled: CompiledModel, batch: Mapping[str, Tensor]) -> np.ndarray:
    asked = {name for node in compiled.inputs for name in node.get_names()}
    found: np.ndarray = compiled({name: value.cpu().numpy() for name, value in batch.items() if name in asked})[0]
    return found


def _quantise(openvino: Any, folder: Path) -> None:
    """Weights as 8-bit integers, a scale for each row; activations stay."""
    import nncf

    with silence():
        small = nncf.compress_weights(
            openvino.Core().read_model(folder / MODEL), mode=nncf.CompressWeightsMode.INT8_SYM
        )
        openvino.save_model(small, folder / MODEL_INT8, compress_to_fp16=False)


def _packages(*, int8: bool) -> Any:
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
        import openvino

        if int8:
            os.environ.setdefault("NNCF_CI", "1")  # read at its import: it tells its makers of nothing then
            import nncf

            nncf.set_log_level("ERROR")
    except ImportError as error:
        raise MissingExtraError(f"OpenVINO needs {error.name}: pip install 'headprune[openvino]'.") from error
    return openvino
