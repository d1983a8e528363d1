"""Presets: a table or figure of a paper as steps, written in TOML.

    name, study, line, what     which table or figure, and what it shows
    [small] and [paper]         the same at two scales, each with
      inputs                    what must be given: name -> what it is
      chain                     steps that several presets share, by name (_shared.toml), before its own
      seeds                     of every step, unless it has its own
      [[…steps]]                name, command (or work), arguments, options, needs, seeds, and
                                each (a list of values a parameter: every combination) or rows (tables of values)
      [[…values]]               what to look at: name, step, path in its result, where (values of `each`), paper's value

Options hold placeholders: {data} for an input, {model} for the folder of a step, {seed}, {rate} for one of `each`.
"""

from __future__ import annotations

import functools
import itertools
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any

from headprune.errors import PresetError
from headprune.experiments.trial import Trial
from headprune.registry import hint

SCALES = ("small", "paper")
_PLACE = re.compile(r"\{([A-Za-z][\w-]*)\}")


@dataclass(frozen=True, kw_only=True)
class Step:
    """One kind of trial, done for every seed and every combination of `each`."""

    name: str
    command: str = ""
    work: str = "command"
    arguments: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    each: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    rows: tuple[Mapping[str, Any], ...] = ()
    published: float | None = None  # parameters of its layers, as the paper tells them: for `run --check`
    seeds: tuple[int, ...] | None = None

    def texts(self) -> list[str]:
        """Where placeholders may stand."""
        return list(_texts([*self.arguments, *self.options.values()]))

    def combinations(self) -> Iterator[dict[str, Any]]:
        for row in self.rows or ({},):
            for values in itertools.product(*self.each.values()):
                yield {**row, **dict(zip(self.each, values, strict=True))}

    def parameters(self) -> set[str]:
        return {*self.each, *(name for row in self.rows for name in row)}


@dataclass(frozen=True, kw_only=True)
class Value:
    """A number of a result that the paper tells too, or that belongs beside it."""

    name: str
    step: str
    path: str
    where: Mapping[str, Any] = field(default_factory=dict)
    paper: float | str | None = None


@dataclass(frozen=True, kw_only=True)
class Scale:
    """A preset at one size."""

    inputs: Mapping[str, str] = field(default_factory=dict)
    seeds: tuple[int, ...] = (1,)
    steps: tuple[Step, ...]
    values: tuple[Value, ...] = ()
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A table or figure."""

    name: str
    study: str
    line: str
    what: str
    scales: Mapping[str, Scale]
    source: str  # the text of its file

    def scale(self, name: str) -> Scale:
        if name not in self.scales:
            raise PresetError(f"{self.name} has no scale '{name}'. {hint(name, self.scales)}")
        return self.scales[name]


def preset_names() -> list[str]:
    names = (entry.name for entry in _folder().iterdir())
    return sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml") and not name.startswith("_"))


def find_preset(name: str) -> Preset:
    """A preset by its name, or from a file of the user's."""
    if name.endswith(".toml"):
        path = Path(name)
        try:
            return read_preset(path.read_text(encoding="utf-8"), path.name)
        except (OSError, UnicodeDecodeError) as error:
            raise PresetError(f"'{name}' cannot be read: {error}.") from error
    if name not in preset_names():
        raise PresetError(f"No preset called '{name}'. {hint(name, preset_names())} `headprune run --list` shows all.")
    return _known(name)


def all_presets() -> list[Preset]:
    return [_known(name) for name in preset_names()]


@functools.cache
def _known(name: str) -> Preset:
    return read_preset((_folder() / f"{name}.toml").read_text(encoding="utf-8"), f"{name}.toml")


@functools.cache
def _shared() -> dict[str, Any]:
    return tomllib.loads((_folder() / "_shared.toml").read_text(encoding="utf-8"))


def _folder() -> Any:
    return resources.files("headprune.experiments") / "presets_toml"


def read_preset(text: str, file: str) -> Preset:
    """A preset from the text of a file; what is wrong with it is told with the line."""
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PresetError(f"{file}: {error}.") from error
    reader = _Reader(text, file)
    top = reader.fields(content, {"name": str, "study": str, "line": str, "what": str}, dict.fromkeys(SCALES, dict))
    scales = {name: reader.scale(content[name], name) for name in SCALES if name in content}
    if not scales:
        raise PresetError(f"{file}, line 1: no scale; expected a table [small] or [paper] with steps.")
    return Preset(**{name: top[name] for name in ("name", "study", "line", "what")}, scales=scales, source=text)


class _Reader:
    """Checks fields, and knows where they stand."""

    def __init__(self, text: str, file: str) -> None:
        self.lines, self.file = text.splitlines(), file

    def where(self, name: str, value: Any = None) -> str:
        """The line of a field, of the one with this value if there are several."""
        found = [
            n
            for n, line in enumerate(self.lines, 1)
            if re.search(rf"(^|[\s{{,\[.\"]){re.escape(name)}[\"\s]*[=\]]", line)
        ]
        exact = [n for n in found if isinstance(value, str) and value in self.lines[n - 1]]
        return f"{self.file}, line {(exact or found or [1])[0]}"

    def fields(
        self, content: Any, needed: Mapping[str, type], allowed: Mapping[str, Any], place: str = ""
    ) -> dict[str, Any]:
        """The fields of a table, each of its type; none missing, none unknown."""
        if not isinstance(content, dict):
            raise PresetError(f"{self.where(place)}: '{place}' is {content!r}; expected a table.")
        known = {**needed, **allowed}
        for name, value in content.items():
            if name not in known:
                raise PresetError(f"{self.where(name, value)}: unknown field '{name}'. {hint(name, known)}")
            if not isinstance(value, known[name]) or (isinstance(value, bool) and known[name] is not bool):
                wanted = _KINDS.get(known[name], "another type")
                raise PresetError(f"{self.where(name, value)}: '{name}' is {value!r}; expected {wanted}.")
        for name in needed:
            if name not in content:
                raise PresetError(f"{self.where(place or 'name')}: '{place or self.file}' has no field '{name}'.")
        return content

    def scale(self, content: Any, name: str) -> Scale:
        allowed = {"steps": list, "chain": list, "inputs": dict, "seeds": list, "values": list, "note": str}
        found = self.fields(content, {}, allowed, name)
        chain, inputs = self.shared(found.get("chain", []), name)
        steps = (*chain, *(self.step(step) for step in found.get("steps", ())))
        if not steps:
            raise PresetError(f"{self.where(name)}: [{name}] has no steps; expected [[{name}.steps]] or a chain.")
        scale = Scale(
            inputs={**inputs, **found.get("inputs", {})}, seeds=tuple(found.get("seeds", (1,))), steps=steps,
            values=tuple(self.value(value) for value in found.get("values", ())), note=found.get("note", ""),
        )  # fmt: skip
        self.check(scale)
        used = {place for step in steps for text in step.texts() for place in _PLACE.findall(text)}
        return replace(scale, inputs={place: told for place, told in scale.inputs.items() if place in used})

    def shared(self, names: Sequence[str], scale: str) -> tuple[tuple[Step, ...], dict[str, str]]:
        """Steps that other presets have too, and the inputs of their scale."""
        known = _shared()[scale]
        steps = []
        for name in names:
            if name not in known["steps"]:
                raise PresetError(f"{self.where('chain', name)}: no shared step '{name}'. {hint(name, known['steps'])}")
            steps.append(self.step({"name": name, **known["steps"][name]}))
        return tuple(steps), dict(known["inputs"])

    def step(self, content: Any) -> Step:
        allowed = {
            "command": str,
            "work": str,
            "arguments": list,
            "options": dict,
            "needs": list,
            "each": dict,
            "rows": list,
            "published": (int, float),
            "seeds": list,
        }
        found = dict(self.fields(content, {"name": str}, allowed, "steps"))
        if not found.get("command") and "work" not in found:
            raise PresetError(f"{self.where('name', found['name'])}: the step '{found['name']}' has no command.")
        for name in ("arguments", "needs", "seeds", "rows"):
            if name in found:
                found[name] = tuple(found[name])
        for name, values in found.get("each", {}).items():
            if not isinstance(values, list) or not values:
                raise PresetError(f"{self.where(name)}: '{name}' is {values!r}; expected a list of values.")
        return Step(**found)

    def value(self, content: Any) -> Value:
        needed = {"name": str, "step": str, "path": str}
        return Value(**self.fields(content, needed, {"where": dict, "paper": (int, float, str)}, "values"))

    def check(self, scale: Scale) -> None:
        """Steps need only what comes before them; placeholders and values name what there is."""
        before: dict[str, Step] = {}
        for step in scale.steps:
            if step.name in before or step.name in scale.inputs:
                raise PresetError(f"{self.where('name', step.name)}: '{step.name}' is there twice.")
            for need in step.needs:
                if need not in before:
                    raise PresetError(
                        f"{self.where('needs', need)}: '{step.name}' needs '{need}', which is no step before it. "
                        f"{hint(need, before)}"
                    )
            known = {*scale.inputs, *step.needs, *step.parameters(), "seed"}
            for text in step.texts():
                for place in _PLACE.findall(text):
                    if place not in known:
                        raise PresetError(
                            f"{self.where(_name_of(step, text), text)}: {{{place}}} is no input, need or parameter of "
                            f"'{step.name}'. {hint(place, known)}"
                        )
            before[step.name] = step
        for value in scale.values:
            if value.step not in before:
                raise PresetError(
                    f"{self.where('step', value.step)}: no step called '{value.step}'. {hint(value.step, before)}"
                )


_KINDS: dict[Any, str] = {
    str: "text",
    dict: "a table",
    list: "a list",
    (int, float): "a number",
    (int, float, str): "a number or text",
}


def _texts(values: Sequence[Any]) -> Iterator[str]:
    for value in values:
        if isinstance(value, str):
            yield value
        elif isinstance(value, list):
            yield from _texts(value)


def _name_of(step: Step, text: str) -> str:
    return next((name for name, value in step.options.items() if value == text), "options")


def trials_of(
    preset: Preset, scale_name: str, prints: Mapping[str, str], seeds: Sequence[int] | None = None
) -> list[Trial]:
    """All trials of a preset. `prints` are fingerprints of its inputs; `seeds` may replace its own."""
    scale = preset.scale(scale_name)
    lacking = [name for name in scale.inputs if name not in prints]
    if lacking:
        told = "; ".join(f"{name}: {scale.inputs[name]}" for name in lacking)
        raise PresetError(f"{preset.name} ({scale_name}) needs {told}. Give it with --input {lacking[0]}=PATH.")
    made: dict[tuple[str, int, str], Trial] = {}
    trials = []
    for step in scale.steps:
        for seed in seeds or step.seeds or scale.seeds:
            for values in step.combinations():
                trial = _trial(preset, step, seed, values, scale, prints, made)
                made[(step.name, seed, _combination(values))] = trial
                trials.append(trial)
    return trials


def _trial(
    preset: Preset, step: Step, seed: int, values: Mapping[str, Any], scale: Scale, prints: Mapping[str, str],
    made: Mapping[tuple[str, int, str], Trial],
) -> Trial:  # fmt: skip
    needs = {name: _needed(preset, name, seed, values, made) for name in step.needs}
    fixed = {**values, "seed": seed}
    options = {name: _filled(value, fixed) for name, value in step.options.items()}
    arguments = [_filled(value, fixed) for value in step.arguments]
    used = {place for text in _texts([*arguments, *options.values()]) for place in _PLACE.findall(text)}
    params: dict[str, Any] = {"options": options, "arguments": arguments, "values": dict(values)}
    if step.command:
        params["command"] = step.command
    params["inputs"] = {name: prints[name] for name in scale.inputs if name in used}
    told = ", ".join(f"{name} {value}" for name, value in values.items())
    label = f"{step.name}{f' [{told}]' if told else ''}, seed {seed}"
    return Trial(work=step.work, params=params, seed=seed, needs=needs, step=step.name, label=label)


def _needed(
    preset: Preset, name: str, seed: int, values: Mapping[str, Any], made: Mapping[tuple[str, int, str], Trial]
) -> str:
    """The trial of another step with the same seed (or its only one) and the same values where both have them."""
    found = [(s, trial) for (step, s, _), trial in made.items() if step == name and _agrees(trial, values)]
    same = [trial for s, trial in found if s == seed] or [trial for _, trial in found]
    if len(same) != 1:
        raise PresetError(f"{preset.name}: '{name}' is {len(same)} trials for seed {seed}; expected one that is meant.")
    return same[0].key()


def _agrees(trial: Trial, values: Mapping[str, Any]) -> bool:
    theirs = trial.params["values"]
    return all(theirs[name] == value for name, value in values.items() if name in theirs)


def _filled(value: Any, fixed: Mapping[str, Any]) -> Any:
    """Placeholders of seed and parameters replaced; those of inputs and steps stay until the trial is run."""
    if isinstance(value, list):
        return [_filled(inner, fixed) for inner in value]
    if not isinstance(value, str):
        return value
    whole = _PLACE.fullmatch(value)
    if whole and whole[1] in fixed:
        return fixed[whole[1]]
    return _PLACE.sub(lambda place: str(fixed[place[1]]) if place[1] in fixed else place[0], value)


def _combination(values: Mapping[str, Any]) -> str:
    return repr(sorted(values.items()))


def resolved(value: Any, places: Mapping[str, Path]) -> Any:
    """The remaining placeholders as paths."""
    if isinstance(value, dict):
        return {name: resolved(inner, places) for name, inner in value.items()}
    if isinstance(value, list):
        return [resolved(inner, places) for inner in value]
    if not isinstance(value, str):
        return value
    return _PLACE.sub(lambda place: str(places[place[1]]) if place[1] in places else place[0], value)
