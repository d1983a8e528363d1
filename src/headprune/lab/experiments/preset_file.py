"""Presets from TOML, checked field by field: what is wrong is told with file and line."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from headprune import limits
from headprune.errors import PresetError
from headprune.jobs.job import find_options, job_names
from headprune.jobs.options.base import OptionError, check_step
from headprune.lab.experiments.expand import UnclearNeedError, trials_of
from headprune.lab.experiments.job_step import step_options
from headprune.lab.experiments.placeholders import filled, names_in
from headprune.lab.experiments.presets import DERIVED, RELATIONS, SCALES, Claim, Preset, Scale, Step, Value
from headprune.lab.experiments.trial import Trial
from headprune.lab.experiments.work import works
from headprune.registry import hint


def read_preset(
    text: str, file: str, shared: Mapping[str, Any], *, is_old: bool = False, trusted: bool = False
) -> Preset:
    """A preset from the text of a file; what is wrong with it is told with the line. `shared` are steps by scale. One
    that was run already (`is_old`) need not be one that can be run: its options may be those of another version."""
    try:
        if any(line.count(".") > limits.DOTS for line in text.splitlines()):
            raise ValueError(f"a line with more than {limits.DOTS} dots")
        content = tomllib.loads(text)
        _check_sizes(content)
    except (ValueError, RecursionError) as error:
        raise PresetError(f"{file}: {error}.") from error
    reader = _Reader(text, file, shared)
    top = reader.fields(content, {"name": str, "study": str, "line": str, "what": str}, dict.fromkeys(SCALES, dict))
    if not re.fullmatch(r"\w[\w.-]*", top["name"]):
        raise PresetError(
            f"{reader.where('name')}: name = '{top['name']}'; expected letters, digits, '-', '_' and '.', as in a "
            "file's name."
        )
    scales = {name: reader.scale(content[name], name) for name in SCALES if name in content}
    if not scales:
        raise PresetError(f"{file}, line 1: no scale; expected a table [small] or [paper] with steps.")
    preset = Preset(**{name: top[name] for name in ("name", "study", "line", "what")}, scales=scales, source=text)
    for name, scale in scales.items():
        try:
            trials = trials_of(preset, name, dict.fromkeys(scale.inputs, ""))
        except UnclearNeedError as error:
            raise PresetError(f"{reader.where('name', error.step)}: {error}") from error
        for trial in trials if not is_old else ():
            reader.check_work(trial, trusted=trusted)
    return preset


def _check_sizes(value: object, depth: int = 0) -> None:
    """TOML promises whole numbers of 64 bits; Python reads longer ones, and cannot write them."""
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError("a whole number is larger than 64 bits")
    if depth > limits.DEEPEST:
        raise ValueError(f"nested more than {limits.DEEPEST} deep")
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            _check_sizes(inner, depth + 1)


class _Reader:
    """Checks fields, and knows where they stand."""

    def __init__(self, text: str, file: str, shared: Mapping[str, Any]) -> None:
        self.lines, self.file, self.known = text.splitlines(), file, shared

    def where(self, name: str, value: object = None, *, step: str = "") -> str:
        """The line of a field: of the one with this value, or of the first in a step, if there are several."""
        found = self._lines_of(name)
        exact = [n for n in found if isinstance(value, str) and value in self.lines[n - 1]]
        if step:
            begun = next((n for n in self._lines_of("name") if f'"{step}"' in self.lines[n - 1]), 1)
            exact = [n for n in found if n >= begun] or [begun]
        return f"{self.file}, line {(exact or found or [1])[0]}"

    def _lines_of(self, name: str) -> list[int]:
        field = re.compile(rf"(^|[\s{{,\[.\"]){re.escape(name)}[\"\s]*[=\]]")
        return [n for n, line in enumerate(self.lines, 1) if field.search(line)]

    def fields(
        self, content: object, needed: Mapping[str, type], allowed: Mapping[str, Any], place: str = ""
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

    def each_is(self, values: list[Any], kind: type, name: str, wanted: str) -> None:
        wrong = [value for value in values if not isinstance(value, kind) or isinstance(value, bool)]
        if wrong:
            raise PresetError(f"{self.where(name)}: '{name}' has {wrong[0]!r}; expected {wanted}.")

    def scale(self, content: object, name: str) -> Scale:
        lists = dict.fromkeys(("steps", "chain", "seeds", "values", "claims"), list)
        found = self.fields(content, {}, {**lists, "inputs": dict, "note": str, "differs": str}, name)
        self.each_is(found.get("chain", []), str, "chain", "names of shared steps")
        self.each_is(found.get("seeds", []), int, "seeds", "whole numbers")
        self.each_is(list(found.get("inputs", {}).values()), str, "inputs", "what each input is")
        chain, inputs = self.shared(found.get("chain", []), name)
        steps = (*chain, *(self.step(step, name) for step in found.get("steps", ())))
        if not steps:
            raise PresetError(f"{self.where(name)}: [{name}] has no steps; expected [[{name}.steps]] or a chain.")
        scale = Scale(
            inputs={**inputs, **found.get("inputs", {})}, seeds=tuple(found.get("seeds", (1,))), steps=steps,
            values=tuple(self.value(one) for value in found.get("values", ()) for one in self.rows(value, "values")),
            claims=tuple(self.claim(one) for claim in found.get("claims", ()) for one in self.rows(claim, "claims")),
            note=found.get("note", ""), differs=found.get("differs", ""),
        )  # fmt: skip
        self.check(scale)
        used = names_in([text for step in steps for text in step.texts()])
        return replace(scale, inputs={place: told for place, told in scale.inputs.items() if place in used})

    def shared(self, names: Sequence[str], scale: str) -> tuple[tuple[Step, ...], dict[str, str]]:
        """Steps that other presets have too, and the inputs of their scale."""
        known = self.known[scale]
        steps = []
        for name in names:
            if name not in known["steps"]:
                raise PresetError(f"{self.where('chain', name)}: no shared step '{name}'. {hint(name, known['steps'])}")
            steps.append(self.step({"name": name, **known["steps"][name]}, scale))
        return tuple(steps), dict(known["inputs"])

    def rows(self, content: Any, place: str) -> list[dict[str, Any]]:
        """An entry for each of its `rows`, or each cell of its `table`; what a row says besides placeholders is the
        entry's own field."""
        if not isinstance(content, dict) or not {"rows", "table"} & set(content):
            return [content]
        rest = {name: value for name, value in content.items() if name not in ("rows", "table")}
        rows = content.get("rows", [])
        if "table" in content:
            table = self.fields(
                content["table"], {"down": str, "across": str, "columns": list, "rows": list}, {}, "table"
            )
            self.each_is(table["rows"], list, "rows", "lists: a name, then a cell for each column")
            wrong = [row for row in table["rows"] if len(row) != 1 + len(table["columns"])]
            if wrong:
                found = f"{len(wrong[0])} cells; expected {1 + len(table['columns'])}"
                raise PresetError(f"{self.where('rows')}: the row {wrong[0]!r} has {found}.")
            rows = [
                {table["down"]: row[0], table["across"]: column, "paper": cell}
                for row in table["rows"] for column, cell in zip(table["columns"], row[1:], strict=True)
            ]  # fmt: skip
        if not isinstance(rows, list) or not rows:
            raise PresetError(f"{self.where('rows')}: 'rows' is {rows!r}; expected a list of tables.")
        self.each_is(rows, dict, "rows", "tables of values")
        entries = []
        for row in rows:
            used = names_in([*_texts(rest)])
            entry = {name: _filled(value, row) for name, value in rest.items()}
            own = {name: _filled(value, row) for name, value in row.items() if name not in used or name in _NUMBERS}
            entries.append({**own, **entry})
        return entries

    def step(self, content: Any, scale: str) -> Step:
        allowed = {
            "use": list,
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
        known = self.known.get(scale, {}).get("options", {})
        used: dict[str, Any] = {}
        for name in found.pop("use", ()):
            if name not in known:
                raise PresetError(f"{self.where('use', name)}: no shared options '{name}'. {hint(name, known)}")
            used |= known[name]
        if used:
            found["options"] = {**used, **found.get("options", {})}
        if not found.get("command") and "work" not in found:
            raise PresetError(f"{self.where('name', found['name'])}: the step '{found['name']}' has no command.")
        self.each_is(found.get("rows", []), dict, "rows", "tables of values")
        self.each_is(found.get("seeds", []), int, "seeds", "whole numbers")
        self.each_is(found.get("needs", []), str, "needs", "names of steps")
        for name in ("arguments", "needs", "seeds", "rows"):
            if name in found:
                found[name] = tuple(found[name])
        for name, values in found.get("each", {}).items():
            if not isinstance(values, list) or not values:
                raise PresetError(f"{self.where(name)}: '{name}' is {values!r}; expected a list of values.")
        return Step(**found)

    def value(self, content: Any) -> Value:
        allowed = {"where": dict, "paper": (int, float, str)}
        if "derive" not in content:
            return Value(**self.fields(content, {"name": str, "step": str, "path": str}, allowed, "values"))
        found = dict(self.fields(content, {"name": str, "derive": str, "of": list}, allowed, "values"))
        if found["derive"] not in DERIVED:
            told = hint(found["derive"], DERIVED)
            raise PresetError(f"{self.where('derive', found['derive'])}: derive = '{found['derive']}'. {told}")
        groups = [one if isinstance(one, list) else [one] for one in found.pop("of")]
        of = tuple(tuple(map(str, group)) for group in groups)
        if not of or (found["derive"].startswith("first") and min(map(len, of)) < 2):
            raise PresetError(f"{self.where('of')}: of = {groups!r}; expected groups of names of values.")
        return Value(of=of, **found)

    def claim(self, content: object) -> Claim:
        needed = {"text": str, "value": str, "is": str}
        number = (int, float)
        words = {"cited": str, "reading": str, "differs": str, "paper": (int, float, str)}
        numbers = {"than": number, "by": number, "times": number}
        found = dict(self.fields(content, needed, {"against": str, **numbers, **words}, "claims"))
        relation = found.pop("is")
        if relation not in RELATIONS:
            raise PresetError(f"{self.where('is', relation)}: is = '{relation}'. {hint(relation, RELATIONS)}")
        if ("against" in found) == ("than" in found):
            raise PresetError(
                f"{self.where('text', found['text'])}: the claim '{found['text']}' compares with another value "
                "(against) or with a number (than): expected one of them."
            )
        return Claim(relation=relation, **found)

    def check(self, scale: Scale) -> None:
        """Steps need only what comes before them; placeholders and values name what there is."""
        before: dict[str, Step] = {}
        trials = sum(step.count() * len(step.seeds or scale.seeds) for step in scale.steps)
        if trials > limits.TRIALS:
            raise PresetError(
                f"{self.where('steps')}: {trials} trials; expected at most {limits.TRIALS}. Cut it in parts."
            )
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
                for place in sorted(names_in([text])):
                    if place not in known:
                        raise PresetError(
                            f"{self.where(_name_of(step, text), text)}: {{{place}}} is no input, need or parameter of "
                            f"'{step.name}'. {hint(place, known)}"
                        )
            before[step.name] = step
        earlier: list[str] = []
        for value in scale.values:
            if value.derive:
                for name in (name for group in value.of for name in group):
                    if name not in earlier:
                        told = f"'{name}' is no value before '{value.name}'. {hint(name, earlier)}"
                        raise PresetError(f"{self.where('of', name)}: {told}")
            else:
                self.check_value(value, before)
            earlier.append(value.name)
        names = [value.name for value in scale.values]
        for claim in scale.claims:
            for field, named in (("value", claim.value), ("against", claim.against)):
                if named is not None and names.count(named) != 1:
                    raise PresetError(
                        f"{self.where(field, named)}: '{named}' is {names.count(named)} values; expected one. "
                        f"{hint(named, names)}"
                    )

    def check_work(self, trial: Trial, *, trusted: bool) -> None:
        """There is such a job or work, and the job takes what it is given."""
        if trial.work != "command":
            if trial.work not in works:
                raise PresetError(
                    f"{self.where('work', trial.work)}: no work '{trial.work}'. {hint(trial.work, works)}"
                )
            return
        if trial.kind not in job_names():
            place = self.where("command", trial.kind)
            raise PresetError(f"{place}: no job called '{trial.kind}'. {hint(trial.kind, job_names())}")
        try:
            check_step(
                find_options(trial.kind),
                trial.params["arguments"],
                trial.params["options"],
                trial.kind,
                trusted=trusted,
            )
            step_options(trial.params, {})
        except OptionError as error:
            raise PresetError(f"{self.where(error.option or 'command', step=trial.step)}: {error}") from error

    def check_value(self, value: Value, steps: Mapping[str, Step]) -> None:
        """It must mean one trial a seed: several would be taken for seeds, none would never be done."""
        if value.step not in steps:
            raise PresetError(
                f"{self.where('step', value.step)}: no step called '{value.step}'. {hint(value.step, steps)}"
            )
        meant = [row for row in steps[value.step].combinations() if value.where.items() <= row.items()]
        if len(meant) != 1:
            raise PresetError(
                f"{self.where('name', value.name)}: where = {dict(value.where)} of the value '{value.name}' means "
                f"{len(meant)} trials of '{value.step}'; expected 1."
            )


_NUMBERS = ("than", "by", "times", "paper")  # a row may name one in a text and mean it, too


def _texts(value: Any) -> list[Any]:
    """All texts of an entry, however deep."""
    if isinstance(value, dict):
        return [text for inner in value.values() for text in _texts(inner)]
    if isinstance(value, list):
        return [text for inner in value for text in _texts(inner)]
    return [value]


def _filled(value: Any, row: Mapping[str, Any]) -> Any:
    if isinstance(value, dict):
        return {name: _filled(inner, row) for name, inner in value.items()}
    return [_filled(inner, row) for inner in value] if isinstance(value, list) else filled(value, row)


_KINDS: dict[Any, str] = {
    str: "text",
    dict: "a table",
    list: "a list",
    (int, float): "a number",
    (int, float, str): "a number or text",
}


def _name_of(step: Step, text: str) -> str:
    return next((name for name, value in step.options.items() if value == text), "options")
