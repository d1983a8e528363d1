"""Presets: all of the papers' tables and figures, options that exist, and errors with file and line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
import typer.main
from typer.testing import CliRunner

import headprune as hp
import headprune.cli.works  # commands as work
from headprune.cli.app import app
from headprune.lab.experiments.expand import trials_of
from headprune.lab.experiments.inputs import fingerprint
from headprune.lab.experiments.library import all_presets, find_preset, preset_names, shared_steps
from headprune.lab.experiments.preset_file import read_preset
from headprune.lab.experiments.work import works

# Every line of the papers' tables and figures that a complete implementation must be able to run.
CHECKLIST = {
    "michel": ["figure-1", "table-1", "table-2", "table-3", "figure-2", "figure-3", "table-4", "figure-4", "figure-5",
               "table-5", "table-6", "figure-6", "claims"],
    "voita": ["figure-6", "figure-7", "figure-8", "table-2", "figure-9", "figure-10", "sections-4-5"],
    "budhraja": ["table-1", "figure-1", "table-2", "table-3", "table-4", "table-5", "table-6", "figure-2", "claims",
                 "grid"],
    "shim": ["figure-1", "table-1", "table-2", "table-3", "figure-3", "export"],
}  # fmt: skip


def call(*words):
    return CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)


def test_every_table_and_figure_is_there():
    """35 lines and Budhraja et al.'s grid."""
    wanted = sorted(f"{paper}-{line}" for paper, lines in CHECKLIST.items() for line in lines)
    assert preset_names() == wanted
    assert len(wanted) == 36
    listed = json.loads(call("run", "--list", "--json").stdout)
    assert [row["name"] for row in listed] == wanted


COMMANDS = typer.main.get_command(app).commands
CASES = [(preset.name, scale) for preset in all_presets() for scale in preset.scales]


@pytest.mark.parametrize(("name", "scale"), CASES)
def test_presets_become_trials_whose_options_exist(name, scale):
    """Every step is a command with options that it has, or a kind of work; every value has a trial to look at."""
    preset = find_preset(name)
    trials = trials_of(preset, scale, dict.fromkeys(preset.scale(scale).inputs, "0" * 16))
    for trial in trials:
        if trial.work != "command":
            assert trial.work in works
            continue
        command = COMMANDS[trial.params["command"]]
        known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        unknown = [option for option in trial.params["options"] if f"--{option}" not in known]
        assert not unknown, (trial.label, unknown)
        wanted = sum(not any(o.startswith("-") for o in parameter.opts) for parameter in command.params)
        assert len(trial.params["arguments"]) == wanted, trial.label
    for value in preset.scale(scale).values:
        assert any(
            trial.step == value.step
            and all(trial.params["values"].get(key) == wanted for key, wanted in value.where.items())
            for trial in trials
        ), value


def test_both_scales_are_told_apart():
    """Nearly every preset has the paper's scale, too; those by arithmetic need but one."""
    alone = [preset.name for preset in all_presets() if "paper" not in preset.scales]
    assert set(alone) <= {"shim-figure-1", "voita-figure-6", "budhraja-figure-1"}


GOOD = """
name = "mine"
study = "me"
line = "none"
what = "nothing"

[small]
inputs = { data = "a folder" }

[[small.steps]]
name = "first"
command = "score"
arguments = ["somewhere"]
options = { data-dir = "{data}", seed = "{seed}" }

[[small.steps]]
name = "second"
command = "curve"
needs = ["first"]
each = { steps = [2, 3] }
options = { scores = "{first}/scores.json", steps = "{steps}" }
"""


def test_a_preset_of_ones_own_is_read():
    """Placeholders of seeds and parameters are filled in, those of inputs and steps wait."""
    preset = read_preset(GOOD, "mine.toml", shared_steps())
    trials = trials_of(preset, "small", {"data": "f" * 16}, seeds=[4, 5])
    assert [trial.label for trial in trials] == [
        "first, seed 4", "first, seed 5", "second [steps 2], seed 4", "second [steps 3], seed 4",
        "second [steps 2], seed 5", "second [steps 3], seed 5",
    ]  # fmt: skip
    assert trials[0].params["options"] == {"data-dir": "{data}", "seed": 4}
    assert trials[0].params["inputs"] == {"data": "f" * 16}
    assert trials[2].params["options"] == {"scores": "{first}/scores.json", "steps": 2}
    assert trials[2].needs == {"first": trials[0].key()}
    with pytest.raises(hp.HeadpruneError, match=r"needs data: a folder. Give it with --input data=PATH"):
        trials_of(preset, "small", {})
    with pytest.raises(hp.HeadpruneError, match="no scale 'paper'"):
        preset.scale("paper")


BAD = [
    ('what = "nothing"', "whatt = 1", r"mine.toml, line 5: unknown field 'whatt'. Did you mean 'what'"),
    ('line = "none"', "line = 3", r"mine.toml, line 4: 'line' is 3; expected text"),
    ('command = "curve"', 'comand = "curve"', r"line 18: unknown field 'comand'"),
    ('needs = ["first"]', 'needs = ["frist"]', r"line 19: 'second' needs 'frist', which is no step before it"),
    ('"{first}/scores.json"', '"{frist}/scores.json"', r"line 21: \{frist\} is no input, need or parameter"),
    ("steps = [2, 3]", "steps = 2", r"'steps' is 2; expected a list"),
    ('name = "second"', 'name = "first"', r"'first' is there twice"),
    ('command = "score"\n', "", r"the step 'first' has no command"),
    ("[small]", "[smal]", r"unknown field 'smal'"),
    ('study = "me"\n', "", r"has no field 'study'"),
    ('name = "mine"', 'name = "x; rm -r y"', r"line 2: name = 'x; rm -r y'; expected letters, digits"),
    ("[[small.steps]]", "[[small.steps", r"mine.toml: .*line"),
    ('"{data}", seed', '"{data}", depth = "{depth}", seed', r"line 14: \{depth\} is no input"),
    (
        'options = { data-dir = "{data}", seed = "{seed}" }',
        'options = { data-dir = "{data}" }\neach = { depth = [1, 2] }',
        r"line 18: 'second' needs 'first', which is 2 trials for seed 1 and \{'steps': 2\}; expected one",
    ),
    ("each = { steps", "rows = [1]\neach = { steps", r"line 20: 'rows' has 1; expected tables of values"),
    ('needs = ["first"]', 'needs = ["first"]\nseeds = ["x"]', r"line 20: 'seeds' has 'x'; expected whole numbers"),
    (
        '[[small.steps]]\nname = "second"',
        '[[small.values]]\nname = "v"\nstep = "second"\npath = "x"\n\n[[small.steps]]\nname = "second"',
        r"line 17: where = \{\} of the value 'v' means 2 trials of 'second'; expected 1",
    ),
]


@pytest.mark.parametrize(("old", "new", "told"), BAD, ids=[new[:24] for _, new, _ in BAD])
def test_what_is_wrong_with_a_preset_is_told_with_file_and_line(old, new, told):
    """And what was expected."""
    with pytest.raises(hp.HeadpruneError, match=told):
        read_preset(GOOD.replace(old, new, 1), "mine.toml", shared_steps())


def test_fingerprints_tell_contents_not_places(tmp_path):
    """The same files elsewhere are the same; a changed, renamed or added one is not; hidden ones do not count."""
    for name in ("a", "b", "c"):
        (tmp_path / name / "sub").mkdir(parents=True)
        (tmp_path / name / "sub" / "x.txt").write_text("some text")
        (tmp_path / name / "large.bin").write_bytes(b"0" * 3_000_000)
    (tmp_path / "a" / ".hidden").write_text("x")
    assert fingerprint(tmp_path / "a") == fingerprint(tmp_path / "b")
    (tmp_path / "b" / "sub" / "x.txt").write_text("same size")
    (tmp_path / "c" / "large.bin").write_bytes(b"0" * 1_500_000 + b"1" + b"0" * 1_499_999)
    assert len({fingerprint(tmp_path / name) for name in ("a", "b", "c")}) == 3
    with pytest.raises(hp.HeadpruneError, match="does not exist"):
        fingerprint(tmp_path / "nowhere")


def test_run_repeats_a_figure_and_says_what_the_paper_says(tmp_path):
    """And does nothing twice."""
    out = call("run", "shim-figure-1", "voita-figure-6", "--out", tmp_path / "runs").stdout
    assert "Transformer-XL, MACs left at 50 %: 0.7319 (paper: 0.73)" in out
    assert "2 trials run, 0 known already" in out
    again = json.loads(call("run", "shim-figure-1", "--out", tmp_path / "runs", "--json").stdout)
    assert (again["done"], again["known"]) == (0, 1)
    found = {value["name"]: value for value in again["presets"]["shim-figure-1"]}
    assert found["All-attention, MACs left at 50 %"]["mean"] == pytest.approx(0.5)
    call("run", "shim-figure-1", "--out", tmp_path / "runs", "--csv", tmp_path / "table.csv")
    assert "shim" not in (tmp_path / "table.csv").read_text().splitlines()[0]
    assert len((tmp_path / "table.csv").read_text().splitlines()) == 3


def test_run_shows_copies_and_refuses(tmp_path, monkeypatch):
    """Near misses, files that are there, inputs that are not given."""
    monkeypatch.chdir(tmp_path)
    assert call("run", "--show", "shim-table-3").stdout.startswith('name = "shim-table-3"')
    call("run", "--copy", "shim-figure-1", "mine.toml")
    assert find_preset("mine.toml").name == "mine"
    assert "savings" in call("run", "mine.toml", "--dry-run").stdout
    for words, told in (
        (("shim-figure1",), "Did you mean 'shim-figure-1'"),
        ((), "Which preset"),
        (("--copy", "shim-figure-1", "mine.toml"), "is there already"),
        (("--copy", "shim-figure-1"), "expected a preset and a file"),
        (("shim-table-3",), "needs text: .*--input text=PATH"),
        (("shim-table-3", "--input", "text"), "expected NAME=PATH"),
        (("shim-figure-1", "--seeds", "one"), "expected whole numbers"),
        (("shim-figure-1", "--scale", "large"), "no scale 'large'"),
        (("nowhere.toml",), "cannot be read"),
    ):
        with pytest.raises(hp.HeadpruneError, match=told):
            call("run", *words)


CHAIN = """
name = "chain"
study = "toy"
line = "none"
what = "a real model through real commands"

[small]
inputs = { text = "text" }
seeds = [1, 2]

[[small.steps]]
name = "model"
command = "train-lm"
options = { data-dir = "{text}", preset = "tiny", updates = 12, test = "test", seed = "{seed}" }

[[small.steps]]
name = "gated"
command = "gates"
arguments = ["{model}"]
needs = ["model"]
each = { weight = [0.01, 1.0] }
[small.steps.options]
task = "stream-lm"
data-dir = "{text}"
max-length = 16
gate = "binary-concrete"
lambda = "{weight}"
updates = 6
gate-lr = 2.0
seed = "{seed}"

[[small.values]]
name = "bits of the whole model"
step = "model"
path = "test/score"

[[small.values]]
name = "heads left"
step = "gated"
path = "results/0/heads/1"
where = { weight = 1.0 }
"""


def test_a_chain_of_real_commands_runs_and_its_failures_are_told(tmp_path):
    """Models are handed from step to step; results are numbers over seeds; a failure stops only what needs it."""
    (tmp_path / "text").mkdir()
    for part, count in (("train", 300), ("dev", 30), ("test", 30)):
        (tmp_path / "text" / f"{part}.txt").write_text("the cat sat on the mat. " * count)
    (tmp_path / "chain.toml").write_text(CHAIN)
    given = f"text={tmp_path / 'text'}"
    words = ("run", tmp_path / "chain.toml", "--input", given, "--out", tmp_path / "runs", "--json")
    result = json.loads(call(*words).stdout)
    assert (result["done"], result["failed"]) == (6, {})
    bits, heads = result["presets"]["chain"]
    assert len(bits["found"]) == len(heads["found"]) == 2
    assert bits["claim"] is False
    records = [json.loads(path.read_text()) for path in (tmp_path / "runs" / "trials").glob("*.json")]
    assert all(str(tmp_path) not in json.dumps(record["result"]) for record in records)
    broken = CHAIN.replace("binary-concrete", "binary-concret")
    (tmp_path / "broken.toml").write_text(broken)
    done = call("run", tmp_path / "broken.toml", *words[2:])
    failed = json.loads(done.stdout)
    assert done.exit_code == 1
    assert (failed["done"], failed["known"], len(failed["failed"])) == (0, 2, 4)
    assert "Did you mean 'binary-concrete'" in next(iter(failed["failed"].values()))


def test_presets_share_what_is_the_same(tmp_path):
    """Gates of Table 1 at the largest λ are those of Table 3 with all techniques; cuts of a table are a figure's."""

    def keys(name):
        preset = find_preset(name)
        return {
            trial.key() for trial in trials_of(preset, "small", dict.fromkeys(preset.scale("small").inputs, "0" * 16))
        }

    assert len(keys("shim-table-1") & keys("shim-table-3")) == 2  # the model, and the gates
    assert len(keys("budhraja-table-4") & keys("budhraja-figure-1")) == 36  # cuts and fine-tunings


def test_ctrl_c_in_a_command_stops_the_sweep(tmp_path, monkeypatch):
    """It is not a failure of the trial, which goes on when the run is started again."""
    from headprune.cli import train_lm
    from headprune.lab.experiments.store import Store

    (tmp_path / "text").mkdir()
    for part in ("train", "dev", "test"):
        (tmp_path / "text" / f"{part}.txt").write_text("the cat sat on the mat. " * 40)
    (tmp_path / "chain.toml").write_text(CHAIN)

    def stop(folder):
        raise KeyboardInterrupt

    monkeypatch.setattr(train_lm, "check_writable", stop)
    given = ("--input", f"text={tmp_path / 'text'}", "--out", tmp_path / "runs")
    assert call("run", tmp_path / "chain.toml", *given).exit_code == 130
    assert len(Store(tmp_path / "runs")) == 0


def test_placeholders_of_presets_are_all_known():
    """No brace is left in what a trial would run, but for inputs and steps."""
    for preset in all_presets():
        for scale in preset.scales:
            known = {*preset.scale(scale).inputs, *(step.name for step in preset.scale(scale).steps)}
            for trial in trials_of(preset, scale, dict.fromkeys(preset.scale(scale).inputs, "0" * 16)):
                text = json.dumps([trial.params["arguments"], trial.params["options"]])
                assert set(re.findall(r"\{([A-Za-z][\w-]*)\}", text)) <= known, trial.label


def test_the_presets_folder_goes_with_the_package():
    """They are read from the package, not from the source tree."""
    folder = Path(hp.__file__).parent / "experiments" / "presets_toml"
    assert len(list(folder.glob("*.toml"))) == 37


def test_the_preset_of_the_guide_is_one():
    """docs/experiments.md shows a file that can be read."""
    text = (Path(__file__).parents[2] / "docs" / "experiments.md").read_text()
    shown = text.split("```toml\n")[1].split("```")[0]
    trials = trials_of(read_preset(shown, "mine.toml", shared_steps()), "small", {"model": "0" * 16, "data": "1" * 16})
    assert len(trials) == 2 * 2 * 3


def test_every_model_of_a_figure_is_built():
    """Five widths of Transformer-XL, each at its own size."""
    from headprune.lab.experiments.placeholders import filled
    from headprune.lab.experiments.size_check import _MODELS

    rival = next(step for step in find_preset("shim-figure-3").scale("paper").steps if step.name == "rival")
    with torch.device("meta"):
        made = [
            _MODELS["train-lm"](rival, {name: filled(value, row) for name, value in rival.options.items()})
            for row in rival.combinations()
        ]
    assert [model.config.hidden_size for model in made] == [512, 480, 448, 416, 384]
    assert [model.config.intermediate_size for model in made] == [2048, 1920, 1792, 1664, 1536]


def test_a_heads_share_is_counted(tmp_path):
    """By cutting one head from each block of a real model: a twelfth of BERT's matrices, less where groups share."""
    from headprune.lab.experiments.work import Context, Needed
    from tests.families.tiny import tiny_model

    for family, share in (("bert", 0.25), ("all_attention", 0.25)):
        tiny_model(family).save_pretrained(tmp_path / family / "out")
        needs = {"model": Needed(tmp_path / family, {})}
        context = Context({"options": {"model": "{model}"}}, 0, tmp_path / "own", needs)
        found = works["head-share"](context)
        assert [row["share"] for row in found.values()] == pytest.approx([share] * 2)


def test_a_value_that_is_not_there_is_told_and_spoils_no_other():
    """A path that leads nowhere, a number that is none."""
    from headprune.lab.experiments.values import number_at

    result = {"a": [{"b": 1}, {"b": None}]}
    assert number_at(result, "a/0/b") == 1.0
    assert number_at(result, "a/-2/b") == 1.0
    assert "no 'c' on the way" in number_at(result, "a/0/c")
    assert "not a number" in number_at(result, "a/1/b")


@pytest.mark.parametrize(("name", "millions"), [("shim-table-1", 54.6), ("shim-table-2", 40.9)])
def test_models_of_the_papers_size_are_built_and_trained(name, millions):
    """`run --check`: the true shape, the published number of parameters, two steps."""
    (one,) = json.loads(call("run", name, "--check", "--json").stdout)[name]
    assert one["agrees"] is True
    assert one["layers"] / 1e6 == pytest.approx(millions, abs=0.05)
    assert len(one["losses"]) == 2


def test_what_has_nothing_to_build_says_so():
    """Figures by arithmetic have no scale of their own for it; others start from models of the hub."""
    with pytest.raises(hp.HeadpruneError, match="no scale 'paper'"):
        call("run", "shim-figure-1", "--check")
