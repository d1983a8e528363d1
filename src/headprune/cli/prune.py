"""`headprune prune`: remove heads and save the smaller model."""

from __future__ import annotations

import json as json_module
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headprune.cli.budget import Budget, Halves
from headprune.cli.choosing import Choice, choose
from headprune.cli.options import (
    Device,
    Json,
    Model,
    RemoteCode,
    Seed,
    check_writable,
    find_parts,
    load_model,
    progress,
)
from headprune.cli.taskdata import TaskOptions, padded_as, takes_task
from headprune.cli.widening import takes
from headprune.errors import CheckpointError, MaskError
from headprune.recovery.calibration import Calibration

if TYPE_CHECKING:
    from headprune.heads import HeadMap, HeadMask

# What a model folder holds besides the files that saving the pruned model writes anew.
TRAINED = ("finetune.json", "train-mt.json", "train-lm.json", "training_args.bin", "trainer_state.json")
RESULT = "prune.json"
RESULTS = (*TRAINED, "evaluation.json", RESULT)
WEIGHTS = (".safetensors", ".bin", ".gguf", ".onnx", ".h5", ".msgpack", ".ot", ".pt", ".pth", ".index.json")


@takes_task(task=None)
@takes(Choice, "choice")
def prune(
    model: Model,
    data: TaskOptions,
    choice: Choice,
    out: Annotated[Path | None, typer.Option(help="Folder for the smaller model.")] = None,
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
    choice.check()
    if out is not None:
        check_writable(out, model)
        check_replaceable(out)
    from headprune.cost.measurement import sized_example
    from headprune.files import write_text
    from headprune.heads import HeadMask
    from headprune.surgery.plan import plan
    from headprune.surgery.prune import perform

    ways: Any = {"gqa": choice.gqa, "empty_site": empty_site}
    with progress(4) as step:
        step("loading the model")
        loaded = load_model(model, device, trust_remote_code=trust_remote_code)
        step("choosing heads")
        every, found = find_parts(loaded, choice.meant)
        calibrated, budget = _examples(choice, data, model, loaded, found, seed, empty_site)
        some, how = choose(choice, loaded, found, seed, calibrated, budget)
        chosen = HeadMask.from_dict(every, some.to_dict())
        if choice.repair is not None and empty_site == "skip":
            _refuse_a_repair_that_is_dropped(chosen, every)
        step("counting")
        shape = sized_example(loaded, choice.batch, choice.length) if choice.has_shape else None
        planned = plan(loaded, chosen, **ways, example=shape)
        result: dict[str, Any] = {**planned.to_dict(), "by": how, "difference": None, "out": None}
        if budget is not None:
            result["budget"] = budget.report(some)
        if out is not None:
            step("removing heads")
            if calibrated is not None and choice.repair is not None:
                result["recovery"] = replace(calibrated, heads=every).repair(chosen, choice.repair).to_dict()
            outcome = perform(loaded, chosen, **ways, about={"by": how})
            result |= {"difference": outcome.difference.largest if outcome.difference else 0.0, "out": str(out)}
            write_text(out / RESULT, json_module.dumps(result, indent=1) + "\n")  # first: it says whose folder this is
            with kept_card(Path(model), out):
                loaded.save_pretrained(out)  # type: ignore[operator]
            copy_companions(Path(model), out)
    if json:
        typer.echo(json_module.dumps(result, indent=1))
        return
    if budget is not None:
        typer.echo(budget.told(result["budget"]))
    if dry_run:
        typer.echo(str(planned).replace(planned.summary(), f"would remove {planned.summary()}"))
    else:
        left = result["recovery"]["error_left"] if choice.repair else 0.0
        repaired = f"; {choice.repair}: {left:.0%} of the error left" if choice.repair else ""
        equal = f"outputs equal the masked model ({result['difference']:.0e})"
        chance = f", chosen at random (seed {seed}; --method or --scores choose by worth)" if choice.by_chance else ""
        typer.echo(f"removed {planned.summary()}{chance}{repaired}; {equal}; saved to {out}")


def check_replaceable(folder: Path) -> None:
    """What `prune` wrote may be replaced, as by the same command again; a model from elsewhere, or trained, may not."""
    if not (folder / "config.json").exists():
        return
    trained = next((name for name in TRAINED if (folder / name).is_file()), None)
    if trained is not None or not (folder / RESULT).is_file():
        raise CheckpointError(
            f"'{folder}' holds another model{f' ({trained})' if trained else ''}, which would be lost. Choose another "
            "--out, or remove that folder."
        )


def _refuse_a_repair_that_is_dropped(mask: HeadMask, heads: HeadMap) -> None:
    emptied = [site.id for site in heads if site.num_heads and not mask.kept(site.id)]
    if emptied:
        raise MaskError(
            f"{emptied[0]} loses all its heads: --empty-site skip would drop the bias that --recover repairs. Use "
            "--empty-site bias, or --at-least 1."
        )


def _examples(
    choice: Choice, data: TaskOptions, name: str, model: Any, heads: Any, seed: int, empty_site: Any
) -> tuple[Calibration | None, Budget | None]:
    """What choosing and repairing need of a task: training examples, and the halves of the dev set for --max-drop."""
    if not choice.needs_data:
        return None, None
    if data.task is None:
        raise MaskError("--method, --recover and --max-drop need --task: on what?")
    opened = data.open(name)
    padded_as(model, opened.processor)
    calibration = Calibration(model, heads, [], "")
    if choice.method is not None or choice.repair is not None:
        rows = opened.examples("train", choice.calibration, seed)
        told = f"{len(rows)} examples of {opened.task.name}, train"
        calibration = Calibration(model, heads, opened.batches(rows), told, seed)
    if choice.max_drop is None:
        return calibration, None
    halves = Halves(opened, seed)
    return calibration, Budget(
        calibration, halves, choice.max_drop, at_least=choice.at_least, unit=choice.unit, recover=choice.repair,
        empty_site=empty_site,
    )  # fmt: skip


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


@contextmanager
def kept_card(source: Path, target: Path) -> Iterator[None]:
    """The source's model card is there while saving adds what was removed; taken away again if saving fails."""
    card, copied = source / "README.md", False
    was_there = target.exists()
    if card.is_file() and not (target / "README.md").exists():
        target.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(card, target / "README.md")
        copied = True
    try:
        yield
    except BaseException:
        if copied:
            (target / "README.md").unlink(missing_ok=True)
            if not was_there and not any(target.iterdir()):
                target.rmdir()
        raise


def _save_tokenizer(name: str, target: Path) -> None:
    from transformers import AutoTokenizer

    try:
        AutoTokenizer.from_pretrained(name).save_pretrained(target)
    except (OSError, ValueError, KeyError):
        return  # vision and audio models have none
