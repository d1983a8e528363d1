"""`headprune`: the commands, and how errors reach a person."""

from __future__ import annotations

import logging
import sys
from typing import Annotated

import typer

from headprune import __version__
from headprune.cli import (
    ablate,
    curve,
    demo,
    diff,
    doctor,
    evaluate,
    explain,
    export,
    finetune,
    functions,
    gates,
    inspect,
    prune,
    report,
    run,
    score,
    train_lm,
    train_mt,
    verify,
)
from headprune.cli.options import state
from headprune.errors import HeadpruneError

INTERRUPTED = 130  # what a command gives back after Ctrl-C
STOPPED = "\nstopped; the same command goes on from what it had finished"

app = typer.Typer(
    name="headprune",
    help="Which attention heads does your Transformer need? Remove the rest for real.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("inspect")(inspect.inspect)
app.command("verify")(verify.verify)
app.command("finetune")(finetune.finetune)
app.command("train-mt")(train_mt.train_mt)
app.command("train-lm")(train_lm.train_lm)
app.command("evaluate")(evaluate.evaluate)
app.command("export")(export.export)
app.command("score")(score.score)
app.command("ablate")(ablate.ablate)
app.command("curve")(curve.curve)
app.command("gates")(gates.gates)
app.command("functions")(functions.functions)
app.command("diff")(diff.diff)
app.command("prune")(prune.prune)
app.command("run")(run.run)
app.command("report")(report.report)
app.command("demo")(demo.demo)
app.command("doctor")(doctor.doctor)
app.command("explain")(explain.explain)


def _version(show: bool) -> None:
    if show:
        typer.echo(f"headprune {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and stop.")
    ] = False,
) -> None:
    state.debug = debug
    logging.getLogger("headprune").setLevel(logging.DEBUG if debug else logging.NOTSET)


def main() -> None:
    """Entry point: an error is told without a traceback unless --debug asks for it; Ctrl-C is none."""
    try:
        app()
    except SystemExit as ended:
        if ended.code == INTERRUPTED:  # what typer makes of Ctrl-C
            typer.echo(STOPPED, err=True)
        raise
    except KeyboardInterrupt:
        typer.echo(STOPPED, err=True)
        sys.exit(INTERRUPTED)
    except Exception as error:
        if state.debug:
            raise
        typer.echo(_told(error), err=True)
        sys.exit(1)


def _told(error: Exception) -> str:
    if isinstance(error, HeadpruneError):
        return f"error: {error}\n(more: headprune explain {type(error).__name__})"
    what = f"{type(error).__name__}: {error}"
    if isinstance(error, OSError):  # a full disk, a folder that may not be written: nothing of ours
        return f"error: {what}"
    return (
        f"unexpected error: {what}\nThis is a fault of headprune, or of a library below it. `headprune --debug …` "
        "shows where; please report it with that and with what `headprune doctor` prints."
    )
