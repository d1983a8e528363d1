"""What a person would do instead of pruning, or on top of it: weights of eight bits, by onnxruntime or by torchao."""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import headprune as hp


def quantised(model: nn.Module, how: str) -> nn.Module:
    """A model of eight bits that answers like any."""
    if how == "int8-onnx":
        return OnnxModel(model)
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_

    small = copy.deepcopy(model)
    quantize_(small, Int8DynamicActivationInt8WeightConfig())
    return small


class OnnxModel(nn.Module):
    """A classifier that runs in onnxruntime with one thread, its weights of eight bits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        import onnxruntime

        self.config = model.config
        self.place = nn.Parameter(torch.zeros(1), requires_grad=False)  # says which device the answers are on
        self.kept = tempfile.TemporaryDirectory()  # as long as the session reads it
        hp.export(copy.deepcopy(model), self.kept.name, format="onnx", int8=True)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(
            str(Path(self.kept.name) / "model.int8.onnx"), options, providers=["CPUExecutionProvider"]
        )
        self.asked = [node.name for node in self.session.get_inputs()]

    def forward(self, labels: Tensor | None = None, **inputs: Tensor) -> Any:
        none = torch.zeros_like(inputs["input_ids"])  # token types that a tokenizer does not give
        given = {name: inputs.get(name, none).numpy() for name in self.asked}
        logits = torch.from_numpy(self.session.run(None, given)[0])
        loss = None if labels is None else F.cross_entropy(logits.flatten(0, -2), labels.flatten())
        return SimpleNamespace(logits=logits, loss=loss)
