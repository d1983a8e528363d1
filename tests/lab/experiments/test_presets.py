"""Presets of all of the papers' tables and figures, with options that exist."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import headprune as hp
from headprune.lab.experiments.expand import trials_of
from headprune.lab.experiments.job_step import step_options
from headprune.lab.experiments.library import all_presets, find_preset, preset_names
from headprune.lab.experiments.work import works
from tests.command import invoked

# Every line of the papers' tables and figures that a complete implementation must be able to run.
CHECKLIST = {
    "michel": ["figure-1", "table-1", "table-2", "table-3", "figure-2", "figure-3", "table-4", "figure-4", "figure-5",
               "table-5", "table-6", "figure-6", "claims"],
    "voita": ["figure-6", "figure-7", "figure-8", "table-2", "figure-9", "figure-10", "sections-4-5"],
    "budhraja": ["table-1", "figure-1", "table-2", "table-3", "table-4", "table-5", "table-6", "figure-2", "claims",
                 "grid"],
    "shim": ["figure-1", "table-1", "table-2", "table-3", "figure-3", "export"],
}  # fmt: skip


def test_every_table_and_figure_is_there():
    """35 lines and Budhraja et al.'s grid; a file more is a preset more."""
    wanted = sorted(f"{paper}-{line}" for paper, lines in CHECKLIST.items() for line in lines)
    assert set(wanted) <= set(preset_names())
    assert len(wanted) == 36
    listed = json.loads(invoked("run", "--list", "--json").stdout)
    assert [row["name"] for row in listed] == preset_names()


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
        step_options(trial.params, {})
    for value in preset.scale(scale).values:
        assert value.derive or any(
            trial.step == value.step
            and all(trial.params["values"].get(key) == wanted for key, wanted in value.where.items())
            for trial in trials
        ), value


def test_both_scales_are_told_apart():
    """Nearly every preset has the paper's scale, too; those by arithmetic need but one."""
    wanted = {f"{paper}-{line}" for paper, lines in CHECKLIST.items() for line in lines}
    alone = [preset.name for preset in all_presets() if preset.name in wanted and "paper" not in preset.scales]
    assert set(alone) <= {"shim-figure-1", "voita-figure-6", "budhraja-figure-1"}


def test_presets_share_what_is_the_same(tmp_path):
    """Gates of Table 2 at the largest λ are those of Table 3 with all techniques; cuts of a table are a figure's."""

    def keys(name):
        preset = find_preset(name)
        return {
            trial.key() for trial in trials_of(preset, "small", dict.fromkeys(preset.scale("small").inputs, "0" * 16))
        }

    assert len(keys("shim-table-2") & keys("shim-table-3")) == 2 * 3  # the model, and the gates
    assert len(keys("budhraja-table-4") & keys("budhraja-figure-1")) == 19 * 3  # models, cuts and fine-tunings
    assert keys("michel-table-2") == keys("michel-table-5")


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
    folder = Path(hp.__file__).parent / "lab" / "experiments" / "presets_toml"
    assert len(list(folder.glob("*.toml"))) == len(preset_names()) + 1


def test_every_statement_is_the_papers_or_says_that_it_is_ours():
    """With its place there, or with what we take its words to mean; and why it may come out otherwise when small."""
    for preset in all_presets():
        for name, scale in preset.scales.items():
            for claim in scale.claims:
                assert bool(claim.cited) != bool(claim.reading), (preset.name, claim.text)
                assert name == "paper" or claim.differs or scale.differs, (preset.name, claim.text)


def test_every_table_and_figure_has_statements_at_both_sizes_and_three_seeds():
    """The grid of learning rates says nothing that could be false."""
    for preset in all_presets():
        for scale in preset.scales.values():
            assert scale.claims or preset.name == "budhraja-grid"
        exact = {"densities", "savings", "head-share"}
        small = preset.scale("small")
        assert len(small.seeds) >= 3 or any(step.work in exact for step in small.steps), preset.name
