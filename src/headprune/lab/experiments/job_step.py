"""A job as the work of a trial: the step names it and its options, and the trial's result is the job's."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headprune.jobs.job import Progress, find_job, find_options
from headprune.jobs.options.base import check_step, option_fields, parse
from headprune.lab.experiments.placeholders import resolved
from headprune.lab.experiments.work import OUT, Context, Result, work


class _Noted(Progress):
    """What a job would tell a person goes to a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def note(self, message: str) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{message}\n")


def step_options(
    params: Mapping[str, Any], places: Mapping[str, Path], out: Path = Path(OUT), device: str = "cpu"
) -> Any:
    """The options that a step gives its job. Names that `places` does not have stand for themselves."""
    kind = find_options(params["command"])
    check_step(kind, params["arguments"], params["options"], params["command"], trusted=True)  # asked when it was read
    given = resolved({name: value for name, value in params["options"].items() if name != "json"}, places)
    known = {field.name for field in option_fields(kind)}
    # A trial's folder is its own: what an interrupted start of it left there is resumed or replaced.
    every = (("out", str(out)), ("device", device), ("force", True))
    own = {name: value for name, value in every if name in known}
    return parse(kind, resolved(params["arguments"], places), {**given, **own}, params["command"])


@work("command")
def run_step(context: Context) -> Result:
    """A job in this process. An interrupted one goes on, because every job does."""
    params, places, out, log = context.params, context.places, context.folder / OUT, context.folder / "log.txt"
    options = step_options(params, places, out, context.device)
    with log.open("a", encoding="utf-8") as file, contextlib.redirect_stderr(file):  # what other libraries say
        found = find_job(params["command"])(options, _Noted(log))
    assert found is not None, "a trial is one process"
    names = {str(path): f"{{{name}}}" for name, path in {**places, "out": out}.items()}
    result = _without_paths(found.to_dict(), names)
    # With the names of inputs and steps, not with this machine's paths.
    told = " ".join(["headprune", params["command"], *map(str, params["arguments"]), *_words(params["options"])])
    return {"command": told, **(result if isinstance(result, dict) else {"results": result})}


def _without_paths(value: object, names: Mapping[str, str]) -> Any:
    """A result is the same wherever it was made: paths are told by the names of what they lead to."""
    if isinstance(value, dict):
        return {name: _without_paths(inner, names) for name, inner in value.items()}
    if isinstance(value, list):
        return [_without_paths(inner, names) for inner in value]
    if isinstance(value, str):
        for path, name in names.items():
            value = value.replace(path, name)
    return value


def _words(options: Mapping[str, object]) -> list[str]:
    """`{"keep": ["50%", "25%"], "from-scratch": true}` as a person would type it."""
    pairs = [(name, one) for name, value in options.items() for one in (value if isinstance(value, list) else [value])]
    words = [
        [f"--{name}"] if one is True else [f"--{name}", str(one)] for name, one in pairs if one not in (None, False)
    ]
    return [word for pair in words for word in pair]
