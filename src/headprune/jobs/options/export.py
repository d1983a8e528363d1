"""What `export` can be asked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from headprune.jobs.options.base import Device, Force, Model, Option, RemoteCode


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    model: Model
    out: Annotated[Path, Option("Folder for the exported model.")]
    kind: Annotated[
        str,
        Option(
            "plain: an ordinary checkpoint, if every layer keeps as many heads; standalone: with its own code; "
            "onnx: for onnxruntime and others.",
            flags=("--format",),
        ),
    ] = "plain"
    int8: Annotated[bool, Option("onnx: with quantised weights, too.")] = False
    force: Force = False
    device: Device = "cpu"
    trust_remote_code: RemoteCode = False
