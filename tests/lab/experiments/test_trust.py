"""A preset is data: it writes below --out alone, and runs no code that comes with a model unless a person says so."""

from __future__ import annotations

import pytest

from headprune.errors import PresetError
from headprune.jobs.job import find_options, job_names
from headprune.jobs.options.base import OptionError, check_step, option_fields
from headprune.lab.experiments.library import find_preset
from tests.command import call

PRESET = """name = "mine"
study = "s"
line = "l"
what = "w"
[small]
[[small.steps]]
name = "a"
command = "{command}"
arguments = {arguments}
options = {options}
"""


def preset(tmp_path, command, arguments="[]", options="{}"):
    path = tmp_path / "mine.toml"
    path.write_text(PRESET.format(command=command, arguments=arguments, options=options))
    return str(path)


def test_code_of_a_checkpoint_runs_only_if_the_person_says_so(tmp_path):
    """The error has the line, the option and what to type; `false` asks for nothing."""
    asking = preset(tmp_path, "prune", '["m"]', '{prune = "50%", "trust-remote-code" = true}')
    with pytest.raises(PresetError, match=r"mine\.toml, line 10: .*headprune run … --trust-remote-code"):
        find_preset(asking)
    assert find_preset(asking, trusted=True).name == "mine"
    with pytest.raises(PresetError, match="--trust-remote-code"):
        call("run", asking, "--dry-run")
    assert "prune" in call("run", asking, "--dry-run", "--trust-remote-code")
    find_preset(preset(tmp_path, "prune", '["m"]', '{prune = "50%", "trust-remote-code" = false}'))


@pytest.mark.parametrize(
    ("name", "arguments", "options"),
    [
        ("run", '["michel-table-1"]', '{csv = "/tmp/elsewhere.csv"}'),
        ("run", '["michel-table-1", "/tmp/elsewhere.toml"]', "{copy = true}"),
        ("report", '["runs"]', '{o = "/tmp/elsewhere.html"}'),
        ("prune", '["m"]', '{prune = "50%", out = "/tmp/elsewhere"}'),
        ("inspect", '["m"]', '{out = "../../elsewhere"}'),
    ],
)
def test_a_step_says_not_where_to_write(tmp_path, name, arguments, options):
    """Neither by an option, nor by a command that runs or writes others."""
    with pytest.raises(PresetError, match=r"mine\.toml, line \d+: .*(where to write|cannot be a step)"):
        find_preset(preset(tmp_path, name, arguments, options), trusted=True)


def test_every_path_of_every_job_is_read_or_refused():
    """An option that is added later is refused until it says that it is only read."""
    read, refused = set(), set()
    for job in job_names():
        kind = find_options(job)
        if not getattr(kind, "is_step", True):  # refused as a whole
            continue
        for field in option_fields(kind):
            if "Path" not in str(field.type):
                continue
            given = {} if field.option.is_argument else {field.name.replace("_", "-"): "/tmp/x"}
            try:
                check_step(kind, ["x"] if field.option.is_argument else [], given, job, trusted=True)
                read.add(field.name)
            except OptionError:
                refused.add(field.name)
    files = {"train_file", "dev_file", "test_file", "corpus"}
    assert read == {"mask", "scores", "checkpoints", "data", "levels", "against", "compare_with", "data_dir"} | files
    assert refused == {"out", "keep"}
