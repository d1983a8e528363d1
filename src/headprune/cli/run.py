"""`headprune run`: a table or figure of a paper, from one command."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headprune.cli.options import Json
from headprune.errors import PresetError

if TYPE_CHECKING:
    from headprune.lab.experiments.presets import Preset
    from headprune.lab.experiments.store import Record, Store
    from headprune.lab.experiments.sweep import Runner, Summary


def run(
    names: Annotated[list[str] | None, typer.Argument(help="Presets by name, or files of your own (.toml).")] = None,
    show_all: Annotated[bool, typer.Option("--list", help="Show every preset.")] = False,
    show: Annotated[bool, typer.Option("--show", help="Show a preset's file instead of running it.")] = False,
    copy: Annotated[bool, typer.Option("--copy", help="Copy a preset: run --copy NAME FILE.toml.")] = False,
    scale: Annotated[str, typer.Option(help="small (two cores) or paper (its models, data and settings).")] = "small",
    given: Annotated[
        list[str] | None, typer.Option("--input", help="What a preset needs, as NAME=PATH; repeatable.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of results; what is finished there is not run again.")] = Path(
        "runs"
    ),
    seeds: Annotated[str | None, typer.Option(help="Other seeds than the preset's, as 1,2,3.")] = None,
    runner: Annotated[str, typer.Option(help="inline (one trial after another) or ray (a cluster).")] = "inline",
    address: Annotated[str | None, typer.Option(help="ray: of a cluster, or auto; else one is started.")] = None,
    num_cpus: Annotated[float, typer.Option(help="ray: cores a trial.")] = 1,
    num_gpus: Annotated[float, typer.Option(help="ray: GPUs a trial.")] = 0,
    device: Annotated[
        str | None,
        typer.Option(help="Where trials compute; default cuda if they ask for GPUs, else cpu."),
    ] = None,
    retry: Annotated[bool, typer.Option("--retry", help="Run trials that failed again.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be run.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Build the paper's models at their true size and take two steps with each.")
    ] = False,
    csv: Annotated[Path | None, typer.Option(help="Write the results as a table, too.")] = None,
    track: Annotated[
        list[str] | None,
        typer.Option(help="Send the results to tensorboard (OUT/tensorboard), mlflow or wandb, too; repeatable."),
    ] = None,
    json: Json = False,
) -> None:
    """Repeat a table or figure of a paper; an interrupted run goes on where it stopped."""
    import headprune.cli.works  # noqa: F401  # commands as work
    from headprune.lab.experiments.library import all_presets, find_preset

    if show_all:
        _list(all_presets(), json)
        return
    if not names:
        raise PresetError("Which preset? `headprune run --list` shows all.")
    if copy:
        _copy(names)
        return
    presets = [find_preset(name) for name in names]
    if len({preset.name for preset in presets}) < len(presets):
        raise PresetError(f"Two presets have one name: {', '.join(p.name for p in presets)}. Give the copy another.")
    if show:
        for preset in presets:
            typer.echo(preset.source.rstrip())
        return
    if check:
        _check(presets, json)
        return
    performer = _runner(runner, address, num_cpus, num_gpus)
    ways: Any = {"retry": retry, "dry_run": dry_run, "csv": csv, "track": track or [], "json": json}
    ways["device"] = device or ("cuda" if num_gpus else "cpu")
    _run(presets, scale, given or [], out, _seeds(seeds), performer, **ways)


def _runner(name: str, address: str | None, num_cpus: float, num_gpus: float) -> Runner:
    from headprune.lab.experiments.sweep import Inline

    if name == "inline":
        return Inline()
    if name != "ray":
        raise PresetError(f"The runner is '{name}'; expected inline or ray.")
    from headprune.lab.experiments.ray_runner import RayRunner

    return RayRunner(address=address, num_cpus=num_cpus, num_gpus=num_gpus, modules=("headprune.cli.works",))


def _check(presets: list[Preset], json: bool) -> None:
    from headprune.lab.experiments.size_check import check

    found = {preset.name: [one.to_dict() for one in check(preset)] for preset in presets}
    if json:
        typer.echo(json_module.dumps(found, indent=1))
    else:
        for name, models in found.items():
            for one in models:
                known = "" if one["published"] is None else f" (paper: {one['published'] / 1e6:g} M)"
                typer.echo(
                    f"{name}, {one['step']}: {one['model']}, {one['parameters'] / 1e6:.1f} M parameters, "
                    f"{one['layers'] / 1e6:.1f} M in its layers{known}; two steps taken"
                )
    wrong = [name for name, models in found.items() if any(one["agrees"] is False for one in models)]
    if wrong:
        raise PresetError(f"The size is not the paper's: {', '.join(wrong)}.")


def _list(presets: list[Preset], json: bool) -> None:
    if json:
        rows = [
            {"name": p.name, "paper": p.study, "line": p.line, "what": p.what,
             "scales": {name: {"inputs": dict(s.inputs), "note": s.note} for name, s in p.scales.items()}}
            for p in presets
        ]  # fmt: skip
        typer.echo(json_module.dumps(rows, indent=1))
        return
    width = max(len(preset.name) for preset in presets)
    for preset in presets:
        typer.echo(f"{preset.name:{width}}  {preset.study}, {preset.line}: {preset.what}")


def _copy(names: list[str]) -> None:
    from headprune.files import write_text
    from headprune.lab.experiments.library import find_preset

    if len(names) != 2 or not names[1].endswith(".toml"):
        raise PresetError(f"Found {' '.join(names)}; expected a preset and a file: run --copy NAME FILE.toml.")
    target = Path(names[1])
    if target.exists():
        raise PresetError(f"'{target}' is there already: choose another name, or remove it.")
    source = find_preset(names[0]).source.replace(f'name = "{names[0]}"', f'name = "{target.stem}"', 1)
    write_text(target, source)
    typer.echo(f"{target}: change it, then headprune run {target}")


def _seeds(text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise PresetError(f"--seeds is '{text}'; expected whole numbers with commas, as 1,2,3.") from None


def _inputs(given: list[str]) -> dict[str, Path]:
    found = {}
    for text in given:
        name, equals, path = text.partition("=")
        if not equals or not name or not path:
            raise PresetError(f"--input is '{text}'; expected NAME=PATH.")
        found[name] = Path(path).resolve()
    return found


def _run(
    presets: list[Preset], scale: str, given: list[str], out: Path, seeds: list[int] | None, runner: Runner, *,
    retry: bool, device: str, dry_run: bool, csv: Path | None, track: list[str], json: bool,
) -> None:  # fmt: skip
    from headprune.lab.experiments.inputs import fingerprint
    from headprune.lab.experiments.runs import note_runs, plan_run
    from headprune.lab.experiments.store import Store, check_pandas
    from headprune.lab.experiments.sweep import run_sweep
    from headprune.lab.experiments.trackers import check_tracker, export

    for name in track:  # better known now than after hours
        check_tracker(name)
    if csv is not None:
        check_pandas()
    paths = _inputs(given)
    wanted = {name for preset in presets for name in preset.scale(scale).inputs}
    prints = {name: fingerprint(path) for name, path in paths.items() if name in wanted}
    planned = [plan_run(preset, scale, prints, seeds) for preset in presets]
    trials = [trial for _, found in planned for trial in found]
    if dry_run:
        for trial in trials:
            typer.echo(f"{trial.key()}  {trial.label}: {trial.params.get('command', trial.work)}")
        return
    store = Store(out)
    inputs = {prints[name]: path for name, path in paths.items() if name in prints}
    with store.locked():
        note_runs(store, [run for run, _ in planned])
    keys = {trial.key() for trial in trials}
    known = [record for key in keys if (record := store.get(key)) is not None]
    finished = sum(record.is_done or not retry for record in known)
    with _display(len(keys), finished, quiet=json) as told:
        summary = run_sweep(trials, store, runner, inputs=inputs, retry=retry, device=device, told=told)
    result: dict[str, Any] = {
        "scale": scale, "done": summary.done, "known": summary.known,
        "failed": {record.trial.label: record.error for record in summary.failed},
        "blocked": [trial.label for trial in summary.blocked], "presets": {}, "claims": {},
    }  # fmt: skip
    for run, _ in planned:
        values = run.values(run.records(store))
        result["presets"][run.preset.name] = [value.to_dict() for value in values]
        result["claims"][run.preset.name] = [claim.to_dict() | {"told": claim.told()} for claim in run.claims(values)]
    _tell(result, summary, store, json)
    if csv is not None:
        store.frame().to_csv(csv, index=False)
    for name in track:
        sent = export(store, name, out / name)
        if not json:
            typer.echo(f"{sent} trials sent to {name}")
    if summary.failed:
        raise typer.Exit(1)


def _tell(result: dict[str, Any], summary: Summary, store: Store, json: bool) -> None:
    if json:
        typer.echo(json_module.dumps(result, indent=1))
        return
    for name, values in result["presets"].items():
        if values:
            typer.echo(name)
        for value in values:
            nothing = value["problem"] or "not done"
            here = nothing if value["mean"] is None else f"{value['mean']:.4g}"
            here += f" ± {value['half_width']:.2g}" if value["half_width"] is not None else ""
            paper = "" if value["paper"] is None else f" (paper: {value['paper']})"
            typer.echo(f"  {value['name']}: {here}{paper}")
        for claim in result["claims"][name]:
            typer.echo(f"  {claim['text']}: {claim['told']}")
    for record in summary.failed:
        typer.echo(f"failed: {record.trial.label}: {record.reason}", err=True)
    typer.echo(
        f"{summary.done} trials run, {summary.known} known already, {len(summary.failed)} failed, "
        f"{len(summary.blocked)} waiting for these; {store.folder}"
    )


def _display(total: int, finished: int, *, quiet: bool) -> Any:
    """One bar for the whole sweep, with the time left. Its console keeps the stream it has now: trials redirect it."""
    import contextlib
    import sys

    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    @contextlib.contextmanager
    def shown() -> Any:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
                   TextColumn("left"), TimeRemainingColumn())  # fmt: skip
        with Progress(*columns, console=Console(file=sys.stderr), transient=True, disable=quiet) as bar:
            task = bar.add_task("trials", total=total, completed=finished)

            def told(record: Record) -> None:
                bar.update(task, description=f"done: {record.trial.label}", advance=1, refresh=True)

            yield told

    return shown()
