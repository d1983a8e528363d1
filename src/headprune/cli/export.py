"""`headprune export`: a pruned model for places where headprune is not installed."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import Annotated

import typer

from headprune.checkpoint.load_model import check_writable, load_model
from headprune.cli.options import Device, Json, Model, RemoteCode


def export(
    model: Model,
    out: Annotated[Path, typer.Option(help="Folder for the exported model.")],
    kind: Annotated[
        str,
        typer.Option(
            "--format",
            help="plain: an ordinary checkpoint, if every layer keeps as many heads; standalone: with its own code; "
            "onnx: for onnxruntime and others.",
        ),
    ] = "plain",
    int8: Annotated[bool, typer.Option("--int8", help="onnx: with quantised weights, too.")] = False,
    json: Json = False,
    device: Device = "cpu",
    trust_remote_code: RemoteCode = False,
) -> None:
    """Write a pruned model so that it loads without headprune."""
    check_writable(out, None if kind == "onnx" else model)  # an ONNX file may lie beside the weights
    from headprune.checkpoint.companions import copy_companions, kept_card
    from headprune.checkpoint.export import export as export_model
    from headprune.checkpoint.exports import exports

    weights = exports[kind].weights  # an unknown one is told before a model is loaded
    loaded = load_model(model, device, trust_remote_code=trust_remote_code)
    with kept_card(Path(model), out):
        export_model(loaded, out, kind, int8=int8)
    copy_companions(Path(model), out)
    size = sum(path.stat().st_size for path in out.glob(weights))
    if json:
        typer.echo(json_module.dumps({"format": kind, "bytes": size, "out": str(out)}, indent=1))
        return
    typer.echo(f"{kind}: {size / 1e6:.3g} MB of weights; loads without headprune from {out}")
