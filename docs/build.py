"""Write docs/api.md, docs/cli.md and docs/errors/ from the code, so that they cannot drift. Run by `make docs`."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import headprune as hp
from headprune.jobs.explain import error_pages

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # `python docs/build.py` finds tools/
from tools import layers

HERE = Path(__file__).parent
NOTE = "<!-- Written by `make docs` from the code; edit the docstrings instead. -->"
COMMANDS = (
    "inspect", "verify", "finetune", "train-mt", "train-lm", "evaluate", "score", "ablate", "curve", "gates",
    "functions", "diff", "shrink", "prune", "play", "export", "run", "report", "doctor", "explain", "demo",
)  # fmt: skip


def api() -> str:
    """Every public name with its signature and docstring."""
    intro = "In the examples `model` is a classifier, `tokenizer` its own, `batches` a list of its inputs with labels."
    parts = [NOTE, "# Python API", "", "```python", "import headprune as hp", "```", "", intro]
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
            parts += ["", f"**`{name}.{member}{_signature(value)}`**: {_text(value)}"]
    return parts


def _described(thing: object, name: str) -> list[str]:
    lines = []
    if not (inspect.isclass(thing) and issubclass(thing, Exception)):
        lines += ["```python", _by_line(f"{name}{_signature(thing)}"), "```", ""]
    return [*lines, _text(thing)]


def _text(thing: object) -> str:
    """A docstring as Markdown: its example is a block of code."""
    text, found, example = (inspect.getdoc(thing) or "").partition("\nExample:\n")
    return f"{text}\n```pycon\n{textwrap.dedent(example).strip()}\n```" if found else text


def _signature(thing: object) -> str:
    text = str(inspect.signature(thing))  # type: ignore[arg-type]
    text = re.sub(r"<function <lambda> at 0x[0-9a-f]+>", "…", text)
    return re.sub(r"(: |-> )'([^']*)'", r"\1\2", text).replace("typing.", "")


def _by_line(text: str) -> str:
    """A long signature with one parameter a line."""
    if len(text) <= 88:
        return text
    start, depth, parts, part = text.index("(") + 1, 0, [], ""
    for place, mark in enumerate(text[start:], start):
        depth += (mark in "([{") - (mark in ")]}")
        if depth < 0:
            return "\n".join([text[:start], *(f"    {one.strip()}," for one in (*parts, part)), text[place:]])
        parts, part = ([*parts, part], "") if mark == "," and not depth else (parts, part + mark)
    return text


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


SETTING = """import headprune as hp
from transformers import BertConfig, BertModel

sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
model = BertModel(BertConfig(vocab_size=99, **sizes))
heads = hp.find_heads(model)"""


def errors() -> dict[Path, str]:
    """A page an error, with an example and the message that it really gives, and a list of them all."""
    folder, told = HERE / "errors", error_pages()
    rows = [f"- [{name}]({name}.md): {text.splitlines()[0]}" for name, text in told.items()]
    intro = (
        "Every error of headprune says what was found, what was expected and what to do, and is a `HeadpruneError`. "
        "`headprune explain NAME` shows these pages in a terminal."
    )
    found = {folder / "index.md": "\n".join([NOTE, "# Errors", "", intro, "", *rows]) + "\n"}
    for name, text in told.items():
        about, _, example = text.partition("\nExample:\n")
        parts = [NOTE, f"# {name}", "", about.strip()]
        if example:
            code = textwrap.dedent(example).strip()
            parts += ["", "An example:", "", "```python", SETTING, "", code, "```", "", "It says:", ""]
            parts += ["```text", f"{name}: {message_of(code, name)}", "```"]
        found[folder / f"{name}.md"] = "\n".join([*parts, "", "All errors: [list](index.md)."]) + "\n"
    return found


def message_of(code: str, name: str) -> str:
    """What an example says, which must be the error it is an example of."""
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            exec(f"{SETTING}\n{code}", {})
        except hp.HeadpruneError as error:
            if type(error).__name__ == name:
                return str(error)
            raise
        finally:
            os.chdir(here)
    raise AssertionError(f"the example of {name} raises nothing")


def contributing() -> str:
    """CONTRIBUTING.md with the order of the rooms as it is."""
    path = HERE.parent / "CONTRIBUTING.md"
    return re.sub(r"\| module \| what it knows \|\n(\|.*\n)+", lambda _: layers.table() + "\n", path.read_text())


def pages() -> dict[Path, str]:
    made = {HERE / "api.md": api(), HERE / "cli.md": cli(), HERE.parent / "CONTRIBUTING.md": contributing()}
    return {**made, **errors()}


if __name__ == "__main__":
    for path, text in pages().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
