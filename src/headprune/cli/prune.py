"""`headprune prune`: remove heads and save the smaller model."""

from __future__ import annotations

import json as json_module
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from headprune.cli.options import (
    Device,
    Json,
    Model,
    RemoteCode,
    Seed,
    amount,
    check_writable,
    load_model,
    progress,
)
from headprune.errors import FileFormatError, MaskError

if TYPE_CHECKING:
    from headprune.heads import HeadMap, HeadMask

# What a model folder holds besides the files that saving the pruned model writes anew.
WEIGHTS = (".safetensors", ".bin", ".gguf", ".onnx", ".h5", ".msgpack", ".ot", ".pt", ".pth", ".index.json")


def prune(
    model: Model,
    out: Annotated[Path | None, typer.Option(help="Folder for the smaller model.")] = None,
    mask: Annotated[Path | None, typer.Option(help="A mask file: the heads that stay.")] = None,
    heads: Annotated[str | None, typer.Option(help="Heads or sites that go, by name: encoder.3:7,encoder.5 …")] = None,
    prune: Annotated[
        str | None, typer.Option(help="How many heads go, at random: a share (50%) or a count (72).")
    ] = None,
    keep: Annotated[
        str | None, typer.Option(help="How many heads stay, at random: a share (50%) or a count (72).")
    ] = None,
    seed: Seed = 0,
    unit: Annotated[
        str, typer.Option(help="What goes together at random: head, group (KV group) or query (one head a group).")
    ] = "head",
    gqa: Annotated[
        str | None, typer.Option(help="How grouped-query attention may shrink: group, query or expand.")
    ] = None,
    empty_site: Annotated[
        str, typer.Option(help="A site without heads: bias (keeps its output bias) or skip (adds nothing).")
    ] = "bias",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what would be removed.")] = False,
    json: Json = False,
    device: Device = "cpu",
    trust_remote_code: RemoteCode = False,
) -> None:
    """Remove heads, check that the model answers as if they were masked, and save it."""
    if (out is None) == (not dry_run):
        raise MaskError("Say where the smaller model goes with --out, or ask for --dry-run.")
    if out is not None:
        check_writable(out)
    from headprune.sites import find_heads
    from headprune.surgery.plan import plan
    from headprune.surgery.prune import perform

    with progress(4) as step:
        step("loading the model")
        loaded = load_model(model, device, trust_remote_code=trust_remote_code)
        step("finding heads")
        found = find_heads(loaded)
        chosen, how = _choose(found, mask, heads, prune, keep, seed, unit)
        step("counting")
        planned = plan(loaded, chosen, gqa=_gqa(gqa), empty_site=_empty(empty_site))
        result = {**planned.to_dict(), "by": how, "difference": None, "out": None}
        if out is not None:
            step("removing heads")
            outcome = perform(
                loaded, chosen, gqa=_gqa(gqa), empty_site=_empty(empty_site), about={"by": how, "on": "no data"}
            )
            loaded.save_pretrained(out)  # type: ignore[operator]
            copy_companions(Path(model), out)
            result |= {"difference": outcome.difference.largest if outcome.difference else 0.0, "out": str(out)}
    if json:
        typer.echo(json_module.dumps(result, indent=1))
    elif dry_run:
        typer.echo(str(planned).replace(planned.summary(), f"would remove {planned.summary()}"))
    else:
        typer.echo(f"removed {planned.summary()}; outputs equal the masked model ({result['difference']:.0e})")


def _choose(
    found: HeadMap,
    mask: Path | None,
    heads: str | None,
    prune: str | None,
    keep: str | None,
    seed: int,
    unit: str,
) -> tuple[HeadMask, str]:
    """The mask, and in words how it was chosen."""
    from headprune.heads import HeadMask

    given = [option for option in (mask, heads, prune, keep) if option is not None]
    if len(given) != 1:
        raise MaskError("Say which heads go with one of --mask, --heads, --prune or --keep.")
    if mask is not None:
        try:
            text = mask.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise FileFormatError(f"The mask file '{mask}' cannot be read: {error}.") from error
        return HeadMask.from_json(text, found), f"the mask file {mask.name}"
    if heads is not None:
        names = [name.strip() for name in heads.split(",") if name.strip()]
        return HeadMask.full(found).without(*names), "name"
    share = f"prune {prune}" if prune is not None else f"keep {keep}"
    chosen = HeadMask.random(
        found,
        prune=amount(prune) if prune is not None else None,
        keep=amount(keep) if keep is not None else None,
        seed=seed,
        unit=unit,  # type: ignore[arg-type]
    )
    return chosen, f"random choice ({share}, unit {unit}, seed {seed})"


def _gqa(text: str | None) -> Literal["group", "query", "expand"] | None:
    return text  # type: ignore[return-value]  # checked by prune_


def _empty(text: str) -> Literal["bias", "skip"]:
    return text  # type: ignore[return-value]  # checked by masked and prune_


def copy_companions(source: Path, target: Path) -> None:
    """Tokenizer and other files of a local model folder, so that the pruned folder is as complete as the first."""
    if not source.is_dir():
        _save_tokenizer(str(source), target)
        return
    for path in sorted(source.rglob("*")):
        relative = path.relative_to(source)
        is_weight = path.name.endswith(WEIGHTS) or any(part.startswith(".") for part in relative.parts)
        if path.is_dir() or is_weight or path.suffix == ".py" or (target / relative).exists():
            continue
        (target / relative).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target / relative)


def _save_tokenizer(name: str, target: Path) -> None:
    from transformers import AutoTokenizer

    try:
        AutoTokenizer.from_pretrained(name).save_pretrained(target)
    except (OSError, ValueError, KeyError):
        return  # vision and audio models have none
