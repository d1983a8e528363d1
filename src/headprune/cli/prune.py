"""`headprune prune`: remove heads and save the smaller model."""

from __future__ import annotations

import json as json_module
import shutil
from pathlib import Path
from typing import Annotated, Any

import typer

from headprune.cli.budget import Budget, Halves
from headprune.cli.choosing import Choice, choose
from headprune.cli.options import Device, Json, Model, RemoteCode, Seed, check_writable, load_model, progress
from headprune.cli.taskdata import TaskOptions, padded_as, takes_task
from headprune.errors import MaskError

# What a model folder holds besides the files that saving the pruned model writes anew.
RESULTS = ("finetune.json", "train-mt.json", "evaluation.json", "training_args.bin", "trainer_state.json")
WEIGHTS = (".safetensors", ".bin", ".gguf", ".onnx", ".h5", ".msgpack", ".ot", ".pt", ".pth", ".index.json")


@takes_task(task=None)
def prune(
    model: Model,
    data: TaskOptions,
    out: Annotated[Path | None, typer.Option(help="Folder for the smaller model.")] = None,
    mask: Annotated[Path | None, typer.Option(help="A mask file: the heads that stay.")] = None,
    heads: Annotated[str | None, typer.Option(help="Heads or sites that go, by name: encoder.3:7,encoder.5 …")] = None,
    scores: Annotated[Path | None, typer.Option(help="A scores file: the lowest heads go first.")] = None,
    prune: Annotated[str | None, typer.Option(help="How many heads go: a share (50%) or a count (72).")] = None,
    keep: Annotated[str | None, typer.Option(help="How many heads stay: a share (50%) or a count (72).")] = None,
    pattern: Annotated[str | None, typer.Option(help="A pattern: 888444, 14/31/30, top:3, odd, one, …")] = None,
    max_drop: Annotated[
        float | None, typer.Option(help="As many heads as go without losing more points than this on --task.")
    ] = None,
    per: Annotated[str, typer.Option(help="What a share is taken of: model, component or site.")] = "model",
    at_least: Annotated[int, typer.Option(help="Heads that every site keeps.")] = 0,
    unit: Annotated[
        str, typer.Option(help="What goes together: head, group (KV group) or query (one head a group).")
    ] = "head",
    gqa: Annotated[
        str | None, typer.Option(help="How grouped-query attention may shrink: group, query or expand.")
    ] = None,
    empty_site: Annotated[
        str, typer.Option(help="A site without heads: bias (keeps its output bias) or skip (adds nothing).")
    ] = "bias",
    seed: Seed = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what would be removed.")] = False,
    json: Json = False,
    device: Device = "cpu",
    trust_remote_code: RemoteCode = False,
) -> None:
    """Remove heads, check that the model answers as if they were masked, and save it."""
    if (out is None) == (not dry_run):
        raise MaskError("Say where the smaller model goes with --out, or ask for --dry-run.")
    choice = Choice(
        mask=mask, heads=heads, scores=scores, pattern=pattern, prune=prune, keep=keep, max_drop=max_drop, per=per,
        at_least=at_least, unit=unit, seed=seed,
    )  # fmt: skip
    choice.check()
    if out is not None:
        check_writable(out)
    from headprune.sites import find_heads
    from headprune.surgery.plan import plan
    from headprune.surgery.prune import perform

    ways: Any = {"gqa": gqa, "empty_site": empty_site}
    with progress(4) as step:
        step("loading the model")
        loaded = load_model(model, device, trust_remote_code=trust_remote_code)
        step("choosing heads")
        found = find_heads(loaded)
        budget = None
        if max_drop is not None:
            if data.task is None:
                raise MaskError("--max-drop needs --task: points of what?")
            opened = data.open(model)
            padded_as(loaded, opened.processor)
            budget = Budget(loaded, found, Halves(opened, seed), max_drop, at_least, unit)
        chosen, how = choose(choice, found, budget)
        step("counting")
        planned = plan(loaded, chosen, **ways)
        result: dict[str, Any] = {**planned.to_dict(), "by": how, "difference": None, "out": None}
        if budget is not None:
            result["budget"] = budget.report(chosen)
        if out is not None:
            step("removing heads")
            outcome = perform(loaded, chosen, **ways, about={"by": how})
            keep_card(Path(model), out)
            loaded.save_pretrained(out)  # type: ignore[operator]
            copy_companions(Path(model), out)
            result |= {"difference": outcome.difference.largest if outcome.difference else 0.0, "out": str(out)}
    if json:
        typer.echo(json_module.dumps(result, indent=1))
        return
    if budget is not None:
        typer.echo(budget.told(result["budget"]))
    if dry_run:
        typer.echo(str(planned).replace(planned.summary(), f"would remove {planned.summary()}"))
    else:
        typer.echo(f"removed {planned.summary()}; outputs equal the masked model ({result['difference']:.0e})")


def copy_companions(source: Path, target: Path) -> None:
    """Tokenizer and other files of a local model folder, so that the pruned folder is as complete as the first."""
    if not source.is_dir():
        _save_tokenizer(str(source), target)
        return
    for path in sorted(source.rglob("*")):
        relative = path.relative_to(source)
        weights_of_model = len(relative.parts) == 1 and path.name.endswith(WEIGHTS)
        hidden = any(part.startswith(".") for part in relative.parts)
        if path.is_dir() or weights_of_model or hidden or path.suffix == ".py" or (target / relative).exists():
            continue
        if relative.name in RESULTS or relative.parts[0] == "checkpoints":
            continue  # what training left beside the model
        if path.resolve().is_relative_to(target.resolve()):
            continue  # the target lies inside the source
        (target / relative).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target / relative)


def keep_card(source: Path, target: Path) -> None:
    """The source's model card, to which saving adds what was removed."""
    card = source / "README.md"
    if card.is_file() and not (target / "README.md").exists():
        target.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(card, target / "README.md")


def _save_tokenizer(name: str, target: Path) -> None:
    from transformers import AutoTokenizer

    try:
        AutoTokenizer.from_pretrained(name).save_pretrained(target)
    except (OSError, ValueError, KeyError):
        return  # vision and audio models have none
