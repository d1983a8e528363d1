"""How a job becomes a command: the fields of its options class are the options, and its result is told or printed."""

from __future__ import annotations

import inspect
import json as json_module
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, dataclass
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from headprune.jobs.job import Progress as JobProgress
from headprune.jobs.job import Step, find_job, find_options
from headprune.jobs.options.base import OptionField, build, option_fields

if TYPE_CHECKING:
    from rich.progress import Progress


@dataclass
class State:
    debug: bool = False


state = State()


def _panels(**named: str) -> dict[str, str]:
    return {option: panel.replace("_", " ") for panel, options in named.items() for option in options.split()}


# Options by what they are about, as a help shows them; those that are not named stand first, under "Options".
PANELS = _panels(
    Choose="method scores heads mask pattern per unit at_least uniform components normalize parts gqa",
    Budget="prune keep params macs speedup max_drop budget batch length",
    Data="task data_dir train_file dev_file test_file dataset text pair label metric languages search beams "
    "length_penalty prefix batch_size max_length corpus calibration examples split",
    Repair="recover empty_site epochs lr",
    Output="json out force dry_run seed picture device trust_remote_code title page keep export",
)


def command(name: str) -> Callable[..., None]:
    """The function that a command calls: every field of its job's options class is an option, and --json."""
    options = find_options(name)

    def run(*, json: bool, **given: Any) -> None:
        run_job(name, build(options, given), json)

    parameters = [_parameter(field) for field in option_fields(options)] + [_JSON]
    order = {"seed": 1, "picture": 2, "json": 3, "device": 4, "trust_remote_code": 5}  # at the end of every help
    panels = [None, *dict.fromkeys(PANELS.values())]
    parameters.sort(key=lambda one: (panels.index(PANELS.get(one.name)), order.get(one.name, 0)))
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


_JSON = inspect.Parameter(
    "json", inspect.Parameter.KEYWORD_ONLY, default=False,
    annotation=Annotated[
        bool,
        typer.Option("--json", rich_help_panel="Output", help="Print JSON for programs instead of text for people."),
    ],
)  # fmt: skip


def _parameter(field: OptionField) -> inspect.Parameter:
    said = field.option
    flags = said.flags or ((field.flag,) if field.type is bool else ())  # no --no-… for what is off by default
    more: dict[str, Any] = {"help": said.help, "metavar": said.metavar, "hidden": said.is_hidden}
    if not said.is_argument:
        more["rich_help_panel"] = PANELS.get(field.name)
    if said.is_argument:
        shown: Any = typer.Argument(**more)
    elif said.least is not None:
        shown = typer.Option(*flags, min=said.least, **more)
    else:
        shown = typer.Option(*flags, **more)
    default = inspect.Parameter.empty if field.default is MISSING else field.default
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(field.name, kind, default=default, annotation=Annotated[field.type, shown])


def run_job(name: str, options: object, json: bool) -> None:
    """Do it, and tell what was found: to a person, or as JSON to a program."""
    result = find_job(name)(options, _Shown(quiet=json))
    if result is not None:
        typer.echo(json_module.dumps(result.to_dict(), indent=1) if json else result.message())
    if getattr(result, "failed", False):
        raise typer.Exit(1)


class _Shown(JobProgress):
    """A bar on stderr, gone when done."""

    def __init__(self, *, quiet: bool) -> None:
        self.quiet = quiet

    @contextmanager
    def steps(self, total: int) -> Iterator[Step]:
        with _bar(sys.stderr) as bar:
            task = bar.add_task("", total=total)
            begun = False

            def step(name: str) -> None:
                nonlocal begun
                bar.update(task, description=name, advance=1 if begun else 0)
                begun = True

            yield step

    @contextmanager
    def parts(self, total: int, finished: int = 0) -> Iterator[Step]:
        with _bar(sys.stderr, tells_what_is_left=True, disable=self.quiet) as bar:  # as the stream is now
            task = bar.add_task("", total=total, completed=finished)
            yield lambda name: bar.update(task, description=name, advance=1, refresh=True)

    def note(self, message: str) -> None:
        typer.echo(message, err=True)

    def tell(self, message: str) -> None:
        if not self.quiet:
            typer.secho(message, fg="bright_black" if message.startswith("$ ") else None)


def _bar(stream: TextIO, *, tells_what_is_left: bool = False, disable: bool = False) -> Progress:
    """Imported when a job begins: `--help` shows no bar."""
    from rich import progress
    from rich.console import Console

    columns = [progress.TextColumn("{task.description}"), progress.BarColumn(), progress.MofNCompleteColumn()]
    columns.append(progress.TimeElapsedColumn())
    if tells_what_is_left:
        columns += [progress.TextColumn("left"), progress.TimeRemainingColumn()]
    return progress.Progress(*columns, console=Console(file=stream), transient=True, disable=disable)
