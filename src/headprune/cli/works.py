"""The commands as work of trials: a trial names a command and its options, and its result is what `--json` prints."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator, Mapping
from typing import Any

from headprune.errors import DataError
from headprune.lab.experiments.measures import OUT, places
from headprune.lab.experiments.placeholders import resolved
from headprune.lab.experiments.work import Context, Result, works


@works.add("command")
def command(context: Context) -> Result:
    """A command of headprune in this process. An interrupted one goes on, because every command does."""
    from headprune.cli.app import INTERRUPTED, app

    params = context.params
    asked = [str(params["command"]), *params["arguments"], *_options(params["options"])]
    words = [str(word) for word in resolved(asked, places(context))]
    words += ["--device", context.device, "--out", str(context.folder / OUT), "--json"]
    printed = io.StringIO()
    with (
        (context.folder / "log.txt").open("a", encoding="utf-8") as log,
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(log),
    ):
        code = app(words, standalone_mode=False)
    if code == INTERRUPTED:
        raise KeyboardInterrupt  # typer makes a number of it
    told = " ".join(map(str, asked))  # with the names of inputs and steps, not with this machine's paths
    try:
        found: Any = json.loads(printed.getvalue())
    except ValueError as error:
        raise DataError(f"'{told}' did not print JSON: {printed.getvalue()[:200]!r}.") from error
    here = {**places(context), "out": context.folder / OUT}
    found = _without_paths(found, {str(path): f"{{{name}}}" for name, path in here.items()})
    return {"command": f"headprune {told}", **(found if isinstance(found, dict) else {"results": found})}


def _without_paths(value: Any, names: Mapping[str, str]) -> Any:
    """A result is the same wherever it was made: paths are told by the names of what they lead to."""
    if isinstance(value, dict):
        return {name: _without_paths(inner, names) for name, inner in value.items()}
    if isinstance(value, list):
        return [_without_paths(inner, names) for inner in value]
    if isinstance(value, str):
        for path, name in names.items():
            value = value.replace(path, name)
    return value


def _options(options: Mapping[str, Any]) -> Iterator[str]:
    """`{"keep": ["50%", "25%"], "from-scratch": true}` as words of a command line."""
    for name, value in options.items():
        for one in value if isinstance(value, list) else [value]:
            if one is True:
                yield f"--{name}"
            elif one is not False and one is not None:
                yield from (f"--{name}", str(one))
