"""Presets and trials that take no time."""

from __future__ import annotations

from headprune.lab.experiments.library import shared_steps
from headprune.lab.experiments.preset_file import read_preset
from headprune.lab.experiments.runs import note_runs, plan_run
from headprune.lab.experiments.sweep import Inline, run_sweep
from headprune.lab.experiments.trial import Trial
from headprune.lab.experiments.values import Observed

ONE = Observed("one", None, (1.0, 1.1, 0.9), (1, 2, 3), planned=3)

PRESET = """
name = "{name}"
study = "none"
line = "none"
what = "says what it was told"

[small]
seeds = [1, 2]

[[small.steps]]
name = "{step}"
work = "echo"
each = {{ number = [1, 4] }}
options = {{ number = "{{number}}" }}

[[small.values]]
name = "one"
step = "{step}"
path = "params/options/number"
where = {{ number = 1 }}

[[small.values]]
name = "four"
step = "{step}"
path = "params/options/number"
where = {{ number = 4 }}

[[small.claims]]
text = "four is more than one by two"
value = "four"
is = "above"
against = "one"
by = 2
"""


def preset(name="mine", step="say", extra=""):
    return read_preset(PRESET.format(name=name, step=step) + extra, f"{name}.toml", shared_steps())


def ran(store, *presets, seeds=None):
    planned = [plan_run(one, "small", {}, seeds) for one in presets]
    note_runs(store, [run for run, _ in planned])
    run_sweep([trial for _, trials in planned for trial in trials], store, Inline())


def echoes(count: int, **more) -> list[Trial]:
    return [Trial(work="echo", params={"number": number}, step="echo", **more) for number in range(count)]
