"""What a preset file says, and what is wrong with it."""

from __future__ import annotations

import pytest

import headprune as hp
from headprune.lab.experiments.expand import trials_of
from headprune.lab.experiments.library import shared_steps
from headprune.lab.experiments.preset_file import read_preset
from tests.places import DOCS

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
arguments = ["somewhere"]
needs = ["first"]
each = { steps = [2, 3] }
options = { scores = "{first}/scores.json", steps = "{steps}" }
"""

BAD = [
    (", seed =", ", sede =", r"line 14: score has no option 'sede'. Did you mean 'seed'"),
    ("scores = ", "max-lenght = 3, scores = ", r"line 22: curve has no option 'max-lenght'. Did you mean 'max-length'"),
    ("steps = [2, 3]", 'steps = [2, "many"]', r"line 21: curve: --steps is 'many'; expected a whole number"),
    ('"{steps}" }', '"{steps}", picture = "gif" }', r"line 22: curve: --picture is 'gif'; expected html or png or svg"),
    ('arguments = ["somewhere"]\n', "", r"line 12: score needs model, which was not given"),
    ('["somewhere"]', '["here", "there"]', r"line 13: score was given 2 arguments .*; expected model"),
    ('command = "curve"', 'command = "curv"', r"line 18: no job called 'curv'. Did you mean 'curve'"),
    ('command = "curve"', 'work = "sped"', r"line 18: no work 'sped'. Did you mean 'speed'"),
    ('what = "nothing"', "whatt = 1", r"mine.toml, line 5: unknown field 'whatt'. Did you mean 'what'"),
    ('line = "none"', "line = 3", r"mine.toml, line 4: 'line' is 3; expected text"),
    ('command = "curve"', 'comand = "curve"', r"line 18: unknown field 'comand'"),
    ('needs = ["first"]', 'needs = ["frist"]', r"line 20: 'second' needs 'frist', which is no step before it"),
    ('"{first}/scores.json"', '"{frist}/scores.json"', r"line 22: \{frist\} is no input, need or parameter"),
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
    ("each = { steps", "rows = [1]\neach = { steps", r"line 21: 'rows' has 1; expected tables of values"),
    ('needs = ["first"]', 'needs = ["first"]\nseeds = ["x"]', r"line 21: 'seeds' has 'x'; expected whole numbers"),
    (
        '[[small.steps]]\nname = "second"',
        '[[small.values]]\nname = "v"\nstep = "second"\npath = "x"\n\n[[small.steps]]\nname = "second"',
        r"line 17: where = \{\} of the value 'v' means 2 trials of 'second'; expected 1",
    ),
]


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


@pytest.mark.parametrize(("old", "new", "told"), BAD, ids=[new[:24] for _, new, _ in BAD])
def test_what_is_wrong_with_a_preset_is_told_with_file_and_line(old, new, told):
    """And what was expected."""
    with pytest.raises(hp.HeadpruneError, match=told):
        read_preset(GOOD.replace(old, new, 1), "mine.toml", shared_steps())


def test_the_preset_of_the_guide_is_one():
    """docs/experiments.md shows a file that can be read."""
    text = (DOCS / "experiments.md").read_text()
    shown = text.split("```toml\n")[1].split("```")[0]
    trials = trials_of(read_preset(shown, "mine.toml", shared_steps()), "small", {"model": "0" * 16, "data": "1" * 16})
    assert len(trials) == 2 * 2 * 3
