"""From a preset to its trials: every step for every seed and combination of values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headprune.errors import PresetError
from headprune.lab.experiments.placeholders import filled, names_in
from headprune.lab.experiments.presets import Preset, Scale, Step
from headprune.lab.experiments.trial import Trial


class UnclearNeedError(PresetError):
    """A step needs another that is several trials, or none, for its seed and values."""

    def __init__(self, step: str, message: str) -> None:
        super().__init__(message)
        self.step = step


def trials_of(
    preset: Preset, scale_name: str, prints: Mapping[str, str], seeds: Sequence[int] | None = None, version: str = ""
) -> list[Trial]:
    """All trials of a preset. `prints` are fingerprints of its inputs; `seeds` may replace its own. With the `version`
    of stored results, the trials as that version knew them."""
    scale = preset.scale(scale_name)
    lacking = [name for name in scale.inputs if name not in prints]
    if lacking:
        told = "; ".join(f"{name}: {scale.inputs[name]}" for name in lacking)
        raise PresetError(f"{preset.name} ({scale_name}) needs {told}. Give it with --input {lacking[0]}=PATH.")
    made: dict[str, list[Trial]] = {}
    trials = []
    for step in scale.steps:
        for seed in seeds or step.seeds or scale.seeds:
            for values in step.combinations():
                trial = _trial(step, seed, values, scale, prints, made, version)
                made.setdefault(step.name, []).append(trial)
                trials.append(trial)
    return trials


def _trial(
    step: Step, seed: int, values: Mapping[str, object], scale: Scale, prints: Mapping[str, str],
    made: Mapping[str, Sequence[Trial]], version: str,
) -> Trial:  # fmt: skip
    needs = {name: _needed(step, name, seed, values, made) for name in step.needs}
    fixed = {**values, "seed": seed}
    options = {name: filled(value, fixed) for name, value in step.options.items()}
    arguments = [filled(value, fixed) for value in step.arguments]
    used = names_in([*arguments, *options.values()])
    params: dict[str, Any] = {"options": options, "arguments": arguments, "values": dict(values)}
    if step.command:
        params["command"] = step.command
    params["inputs"] = {name: prints[name] for name in scale.inputs if name in used}
    told = ", ".join(f"{name} {value}" for name, value in values.items())
    label = f"{step.name}{f' [{told}]' if told else ''}, seed {seed}"
    return Trial(work=step.work, params=params, seed=seed, needs=needs, step=step.name, label=label, version=version)


def _needed(step: Step, name: str, seed: int, values: Mapping[str, object], made: Mapping[str, Sequence[Trial]]) -> str:
    """The trial of another step with the same seed (or its only one) and the same values where both have them."""
    found = [trial for trial in made.get(name, ()) if _agrees(trial, values)]
    same = [trial for trial in found if trial.seed == seed] or found
    keys = {(trial.seed, repr(sorted(trial.params["values"].items()))): trial.key() for trial in same}
    if len(keys) != 1:
        raise UnclearNeedError(
            step.name,
            f"'{step.name}' needs '{name}', which is {len(keys)} trials for seed {seed} and {dict(values)}; expected "
            f"one: give '{step.name}' the same `each` or `rows`.",
        )
    return next(iter(keys.values()))


def _agrees(trial: Trial, values: Mapping[str, object]) -> bool:
    theirs = trial.params["values"]
    return all(theirs[name] == value for name, value in values.items() if name in theirs)
