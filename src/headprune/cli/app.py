"""`headprune`: the commands, and how errors reach a person."""

from __future__ import annotations

import importlib
import logging
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from headprune import __version__
from headprune.cli.options import state
from headprune.errors import HeadpruneError

INTERRUPTED = 130  # what a command gives back after Ctrl-C
STOPPED = "\nstopped; the same command goes on from what it had finished"

# Each is a function of the same name in a file of the same name, imported when the command is run.
COMMANDS = {
    "inspect": "Show every attention block of a model and its heads.",
    "verify": "Check that pruning is exact on your model.",
    "finetune": "Train a model through transformers' Trainer; an interrupted run goes on where it stopped.",
    "train-mt": "Train a new translation model; an interrupted run goes on where it stopped.",
    "train-lm": "Train a new language model with a memory; an interrupted run goes on where it stopped.",
    "evaluate": "Score a model, with an interval; for translation, write the translations too.",
    "export": "Write a pruned model for places where headprune is not installed.",
    "score": "Score every head on a task's data. An interrupted run goes on where it stopped.",
    "ablate": "Mask every head in turn and tell which changes of the metric are more than chance.",
    "curve": "Draw how the score falls as more heads go.",
    "gates": "Train gates on the heads of a converged model, prune what they close, and save it. Runs resume.",
    "functions": "Find positional, syntactic and rare-token heads, as Voita et al. 2019 tell them apart.",
    "diff": "Show the mean change of W_q, W_k and W_v by head between two models (Budhraja et al., Figure 2).",
    "prune": "Remove heads, check that the model answers as if they were masked, and save it.",
    "run": "Repeat a table or figure of a paper; an interrupted run goes on where it stopped.",
    "report": "Make one page of stored results.",
    "demo": "Do the whole job on a small real model and real reviews, with no network.",
    "doctor": "Tell what is installed here, and whether it works.",
    "explain": "Show the page of an error, without a network.",
}
MOVED = ("bench",)  # not listed; says where it went, whatever it is given


class LazyGroup(TyperGroup):
    """Lists every command from the table above; the file of a command is imported when it is called."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """What a list of commands shows."""
        known = cmd_name in COMMANDS or cmd_name in MOVED
        return TyperCommand(cmd_name, help=COMMANDS.get(cmd_name)) if known else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """What a call runs."""
        name, shown, rest = super().resolve_command(ctx, args)
        return name, shown if name is None else load_command(name), rest


def load_command(name: str) -> Any:
    """A command with all its options."""
    function = name.replace("-", "_")
    alone = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
    any_words = {"allow_extra_args": name in MOVED, "ignore_unknown_options": name in MOVED}
    alone.command(name, context_settings=any_words)(
        getattr(importlib.import_module(f"headprune.cli.{function}"), function)
    )
    return typer.main.get_command(alone)


app = typer.Typer(
    name="headprune",
    cls=LazyGroup,
    help="Which attention heads does your Transformer need? Remove the rest for real.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


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
        typer.echo(_message(error), err=True)
        sys.exit(1)


def _message(error: Exception) -> str:
    if isinstance(error, HeadpruneError):
        return f"error: {error}\n(more: headprune explain {type(error).__name__})"
    what = f"{type(error).__name__}: {error}"
    if isinstance(error, OSError):  # a full disk, a folder that may not be written: nothing of ours
        return f"error: {what}"
    return (
        f"unexpected error: {what}\nThis is a fault of headprune, or of a library below it. `headprune --debug …` "
        "shows where; please report it with that and with what `headprune doctor` prints."
    )
