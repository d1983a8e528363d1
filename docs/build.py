"""Write docs/api.md and docs/cli.md from the code, so that they cannot drift from it. Run by `make docs`."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import headprune as hp

HERE = Path(__file__).parent
NOTE = "<!-- Written by `make docs` from the code; edit the docstrings instead. -->"
COMMANDS = (
    "inspect", "verify", "finetune", "train-mt", "train-lm", "evaluate", "score", "ablate", "curve", "gates",
    "functions", "diff", "prune", "export", "run", "report", "bench leaderboard", "demo",
)  # fmt: skip


def api() -> str:
    """Every public name with its signature and docstring."""
    parts = [NOTE, "# Python API", "", "```python", "import headprune as hp", "```"]
    for name in hp.__all__:
        if name == "__version__":
            continue
        thing = getattr(hp, name)
        if inspect.ismodule(thing):
            parts += _module(name, thing)
            continue
        parts += ["", f"## `hp.{name}`", "", *_described(thing, name)]
        if inspect.isclass(thing) and not issubclass(thing, Exception):
            for member, value in vars(thing).items():
                parts += _member(member, value)
    return "\n".join(parts) + "\n"


def _module(name: str, module: object) -> list[str]:
    """A public module: what it is, and its functions."""
    parts = ["", f"## `hp.{name}`", "", inspect.getdoc(module) or ""]
    for member, value in vars(module).items():
        own = getattr(value, "__module__", None) == module.__name__  # type: ignore[attr-defined]
        if own and inspect.isfunction(value) and not member.startswith("_"):
            parts += ["", f"**`{name}.{member}{_signature(value)}`**: {inspect.getdoc(value)}"]
    return parts


def _described(thing: object, name: str) -> list[str]:
    lines = []
    if not (inspect.isclass(thing) and issubclass(thing, Exception)):
        lines += ["```python", f"{name}{_signature(thing)}", "```", ""]
    return [*lines, inspect.getdoc(thing) or ""]


def _signature(thing: object) -> str:
    text = str(inspect.signature(thing))  # type: ignore[arg-type]
    text = re.sub(r"<function <lambda> at 0x[0-9a-f]+>", "…", text)
    return re.sub(r"(: |-> )'([^']*)'", r"\1\2", text).replace("typing.", "")


def _member(name: str, value: object) -> list[str]:
    if name.startswith("_"):
        return []
    if isinstance(value, property):
        return ["", f"**`.{name}`**: {inspect.getdoc(value)}"] if inspect.getdoc(value) else []
    function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
    if not inspect.isfunction(function) or not inspect.getdoc(function):
        return []
    return ["", f"**`.{name}{_signature(function)}`**: {inspect.getdoc(function)}"]


def cli() -> str:
    """What `--help` prints, command by command."""
    parts = [NOTE, "# Command line"]
    for words in ((), *(tuple(command.split()) for command in COMMANDS)):
        title = " ".join(("headprune", *words))
        parts += ["", f"## `{title}`", "", "```text", _help(words), "```"]
    return "\n".join(parts) + "\n"


def _help(words: tuple[str, ...]) -> str:
    environment = {**os.environ, "COLUMNS": "110", "TERM": "dumb", "NO_COLOR": "1"}
    command = [sys.executable, "-m", "headprune", *words, "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return "\n".join(line.rstrip() for line in done.stdout.strip().splitlines()).replace(
        "python -m headprune", "headprune"
    )


def pages() -> dict[Path, str]:
    return {HERE / "api.md": api(), HERE / "cli.md": cli()}


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text)
