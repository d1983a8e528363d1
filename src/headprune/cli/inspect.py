"""`headprune inspect`: where the heads of a model are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headprune.checkpoint.load_model import check_writable, load_model
from headprune.cli.options import Device, Json, Model, RemoteCode, progress
from headprune.cli.picture import head_picture, head_text


def inspect(
    model: Model,
    out: Annotated[
        Path | None, typer.Option(help="Folder for heads.json and heads.svg, the same as data and as a picture.")
    ] = None,
    json: Json = False,
    device: Device = "cpu",
    trust_remote_code: RemoteCode = False,
) -> None:
    """Show every attention block of a model and its heads."""
    if out is not None:
        check_writable(out)
    with progress(2) as step:
        step("loading the model")
        loaded = load_model(model, device, trust_remote_code=trust_remote_code)
        step("finding heads")
        from headprune.files import write_text
        from headprune.structure import find_heads

        heads = find_heads(loaded)
    if out is not None:
        write_text(out / "heads.json", heads.to_json())
        write_text(out / "heads.svg", head_picture(heads))
    if json:
        typer.echo(heads.to_json())
        return
    typer.echo(str(heads))
    typer.echo()
    typer.echo(head_text(heads))
