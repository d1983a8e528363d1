"""`headprune`: the commands, and how errors reach a person."""

from __future__ import annotations

import logging
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from headprune import __version__
from headprune.cli.options import command, state
from headprune.errors import HeadpruneError
from headprune.files import disk_trouble
from headprune.quiet import quiet_libraries

INTERRUPTED = 130  # what a command gives back after Ctrl-C
STOPPED = "\nstopped; the same command goes on from what it had finished"

# Each is a job (`headprune.jobs`) whose options (`headprune.jobs.options`) are read when the command is called.
COMMANDS = {
    "inspect": "Show every attention block of a model and its heads.",
    "verify": "Check on your own model that pruning is exact, saves, loads, generates and trains.",
    "finetune": "Train a model through transformers' Trainer; an interrupted run goes on where it stopped.",
    "train-mt": "Train a Transformer on pairs of sentences; an interrupted run goes on where it stopped.",
    "train-lm": "Train an All-attention or Transformer-XL language model; an interrupted run goes on where it stopped.",
    "evaluate": "Score a model, with an interval; for translation, write the translations too.",
    "export": "Write a pruned model so that it loads without headprune.",
    "score": "Score every head on a task's data. An interrupted run goes on where it stopped.",
    "ablate": "Mask every head in turn and tell which changes of the metric are more than chance.",
    "curve": "Draw how the score falls as more heads go.",
    "gates": "Train gates on the heads of a converged model, prune what they close, and save it. Runs resume.",
    "functions": "Tell positional, syntactic and rare-token heads (Voita et al., section 5).",
    "diff": "Show the mean change of W_q, W_k and W_v by head between two models (Budhraja et al., Figure 2).",
    "shrink": "Make a model several times cheaper without training: choose, repair, remove, and tell the price.",
    "prune": "Remove heads, check that the model answers as if they were masked, and save it.",
    "play": "Take heads away in a browser and watch the answers change: served to this machine alone, or as one page.",
    "run": "Repeat a table or figure of a paper; an interrupted run goes on where it stopped.",
    "report": "Show results as one page that needs no network: heads, curves, sizes, and the papers' values by ours.",
    "demo": "Fine-tune MiniLM on film reviews, score its heads, draw the curve, prune, save, reload, compare and time.",
    "doctor": "Show versions, devices and extras, and try everything that pruning needs on a tiny model.",
    "explain": "Say what an error means, where it usually comes from, and what to do.",
}
DETAILS = {
    "train-lm": "--batch-size is the number of streams read side by side, --max-length that of tokens in a segment; 0 "
    "leaves both as the preset has them."
}
MOVED = {
    "bench": "The leaderboard is no command any more. In headprune's repository, `python -m benchmarks.leaderboard` "
    "has the same options, and benchmarks/leaderboard/run.sh makes the whole board."
}


class LazyGroup(TyperGroup):
    """Lists every command from the table above; the options of one are read when it is called."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """What a list of commands shows."""
        if cmd_name in MOVED:
            raise HeadpruneError(MOVED[cmd_name])
        return TyperCommand(cmd_name, help=COMMANDS[cmd_name]) if cmd_name in COMMANDS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """What a call runs."""
        name, shown, rest = super().resolve_command(ctx, args)
        return name, shown if name is None else load_command(name), rest


def load_command(name: str) -> Any:
    """A command with all its options."""
    alone = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
    alone.command(name, help="\n\n".join(filter(None, (COMMANDS[name], DETAILS.get(name)))))(command(name))
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
    if not debug:
        quiet_libraries()


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
    if (said := disk_trouble(error)) is not None:  # a full disk, a folder that may not be written: nothing of ours
        return f"error: {said}\nCheck free space and permissions, and start the same command again."
    return (
        f"unexpected error: {what}\nThis is a fault of headprune, or of a library below it. `headprune --debug …` "
        "shows where; please report it with that and with what `headprune doctor` prints."
    )
