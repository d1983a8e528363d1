"""What `export` can be asked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from headprune.jobs.options.base import Device, Force, Model, Option, RemoteCode


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    model: Model
    out: Annotated[Path, Option("Folder for the exported model; for gguf, a file (small.gguf) or a folder.")]
    kind: Annotated[
        str,
        Option(
            "plain: an ordinary checkpoint, if every layer keeps as many heads; standalone: with its own code; "
            "gguf: for llama.cpp; onnx: for onnxruntime and others; openvino: for OpenVINO.",
            flags=("--format",),
        ),
    ] = "plain"
    quantize: Annotated[str | None, Option("gguf: f32, f16 (the default), bf16, q8_0, q5_1, q5_0, q4_1 or q4_0.")] = (
        None
    )
    int8: Annotated[bool, Option("onnx, openvino: with quantised weights, too.")] = False
    corpus: Annotated[
        list[Path] | None,
        Option("gguf: plain text to compare on, instead of a paragraph of ours; repeatable.", is_read=True),
    ] = None
    pre_tokenizer: Annotated[
        str | None, Option("gguf: llama.cpp's name for the way the tokenizer splits text, if it is not found out.")
    ] = None
    unchecked: Annotated[bool, Option("gguf: write it without a llama.cpp that opens and compares it.")] = False
    force: Force = False
    device: Device = "cpu"
    trust_remote_code: RemoteCode = False
