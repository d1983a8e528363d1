"""`headprune diff`: how much fine-tuning moved each head."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import Annotated

import typer

from headprune.checkpoint.load_model import check_writable, load_model
from headprune.cli.options import Device, Json, Picture, progress


def diff(
    before: Annotated[str, typer.Argument(help="The model before: a folder, or a name on the hub.")],
    after: Annotated[str, typer.Argument(help="The model after; it may be pruned.")],
    out: Annotated[Path, typer.Option(help="Folder for diff.json and its picture.")],
    reading: Annotated[
        str, typer.Option(help="difference: |after - before|; magnitude: ||after| - |before||.")
    ] = "difference",
    picture: Picture = "html",
    json: Json = False,
    device: Device = "cpu",
) -> None:
    """Show the mean change of W_q, W_k and W_v by head between two models (Budhraja et al., Figure 2)."""
    check_writable(out)
    from headprune.files import write_text
    from headprune.lab.analysis.pictures import heat_map, write_picture
    from headprune.lab.analysis.weight_change import weight_changes
    from headprune.structure import find_heads

    with progress(3) as step:
        step("loading the models")
        models = [load_model(name, device) for name in (before, after)]
        step("comparing")
        changes = weight_changes(*models, reading=reading)  # type: ignore[arg-type]
    result = {"before": before, "after": after, **changes.to_dict()}
    write_text(out / "diff.json", json_module.dumps(result, indent=1))
    drawn = heat_map(find_heads(models[0]), changes.overall, title="change of W_q, W_k, W_v by head", name="change")
    page = write_picture(drawn, out / "diff", picture)
    if json:
        typer.echo(json_module.dumps(result, indent=1))
        return
    means = changes.site_means()
    typer.echo(
        f"mean change by site from {min(means.values()):.2e} to {max(means.values()):.2e}: they differ by up to "
        f"{changes.largest_gap():.0%}; {page}"
    )
