"""`headprune prune`: remove heads and save the smaller model."""

from __future__ import annotations

import json as json_module
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headprune.checkpoint.companions import RESULT, check_replaceable, copy_companions, kept_card
from headprune.checkpoint.load_model import check_writable, load_model
from headprune.cli.budget import Budget, Halves
from headprune.cli.choosing import Choice, choose
from headprune.cli.options import Device, Json, Model, RemoteCode, Seed, progress
from headprune.cli.widening import takes, takes_task
from headprune.errors import MaskError
from headprune.jobs.options.task import TaskOptions
from headprune.recovery.calibration import Calibration
from headprune.structure.find import find_parts
from headprune.tasks.data import open_task
from headprune.tasks.processor import match_padding_

if TYPE_CHECKING:
    from headprune.heads import HeadMap, HeadMask


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
    opened = open_task(data, name)
    match_padding_(model, opened.processor)
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
