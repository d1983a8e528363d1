"""`headprune prune`: by name, mask, chance, scores, pattern and drop."""

from __future__ import annotations

import json

import pytest
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification
from typer.testing import CliRunner

import headprune as hp
from headprune.cli.app import app
from headprune.cost.measurement import sized_example
from headprune.errors import CheckpointError, HeadpruneError
from headprune.jobs.drop_report import DropReport, HalfScores, ScoreChange
from headprune.tasks.task import ScoreSummary
from tests.command import call
from tests.families.tiny import tiny_model
from tests.tasks.toy import write_data, write_model


def test_prune_by_name_saves_a_complete_smaller_model(models, tmp_path):
    """With the tokenizer files, and one line that says what happened."""
    text = call("prune", models / "bert", "--heads", "encoder.0:1, encoder.1", "--out", tmp_path / "small")
    assert text.startswith("removed 5 of 8 heads (")
    assert "outputs equal the masked model" in text
    assert (tmp_path / "small" / "vocab.txt").read_text() == "hello"
    assert "encoder.1  · · · ·" in call("inspect", tmp_path / "small")


def test_prune_by_mask_file(models, tmp_path):
    """The file says which heads stay."""
    heads = hp.find_heads(tiny_model("bert"))
    (tmp_path / "mask.json").write_text(hp.HeadMask.from_dict(heads, {"encoder.0": [2]}).to_json())
    out = json.loads(
        call("prune", models / "bert", "--mask", tmp_path / "mask.json", "--out", tmp_path / "m", "--json")
    )
    assert out["removed"] == {"encoder.0": [0, 1, 3]}
    assert out["heads"] == [8, 5]
    assert out["difference"] < 1e-5
    assert out["parameters"][1] < out["parameters"][0]


def test_random_pruning_is_repeatable_and_fits_groups(models):
    """The same seed, the same heads; units for grouped-query attention."""
    words = ("prune", models / "bert", "--prune", "50%", "--seed", "3", "--dry-run", "--json")
    assert call(*words) == call(*words)
    assert json.loads(call(*words))["heads"] == [8, 4]
    groups = json.loads(call("prune", models / "llama", "--prune", "1", "--unit", "group", "--dry-run", "--json"))
    assert groups["heads"] == [8, 6]
    assert groups["kv_heads"] == [4, 3]


def test_a_dry_run_writes_nothing(models, tmp_path, monkeypatch):
    """It tells what would go."""
    monkeypatch.chdir(tmp_path)
    text = call("prune", models / "bert", "--keep", "6", "--dry-run")
    assert "would remove 2 of 8 heads" in text
    assert list(tmp_path.iterdir()) == []


def test_prune_by_scores_and_pattern(trained, tmp_path):
    """The lowest go; the card says by what."""
    scores = trained / "scores" / "scores.json"
    call("prune", trained / "tuned", "--scores", scores, "--prune", "50%", "--at-least", 1, "--out", tmp_path / "half")
    card = (tmp_path / "half" / "README.md").read_text()
    assert "4 heads by prune 50% by sensitivity on sst2 train, 200 examples" in card
    result = json.loads(call("prune", trained / "tuned", "--pattern", "top:1", "--dry-run", "--json"))
    assert result["removed"] == {"encoder.1": [0, 1, 2, 3]}


def test_prune_within_a_drop(trained, tmp_path):
    """Chosen on one half of dev, told on the other."""
    scores = trained / "scores" / "scores.json"
    words = ("--scores", scores, "--max-drop", 5, "--task", "sst2", "--data-dir", trained / "data")
    result = json.loads(call("prune", trained / "tuned", *words, "--out", tmp_path / "small", "--json"))
    budget = result["budget"]
    drop = budget["validation"]["full"]["score"] - budget["validation"]["pruned"]["score"]
    assert drop <= 0.05 + 1e-9
    assert budget["validation"]["full"]["examples"] + budget["test"]["full"]["examples"] == 60
    assert result["heads"][1] < result["heads"][0]
    assert (
        len(hp.find_heads(AutoModelForSequenceClassification.from_pretrained(tmp_path / "small"))) == result["heads"][1]
    )
    assert "on the other half" in call("prune", trained / "tuned", *words, "--dry-run")


def test_a_drop_that_is_larger_elsewhere_is_told():
    """The amount holds on the half that heads were chosen on; on the other it may not, and a person should know."""

    def told(lost):
        full, pruned = (ScoreSummary("accuracy", score, (0.0, 1.0), 0.95, 30, None) for score in (0.9, 0.9 - lost))
        half, change = HalfScores(full, pruned), ScoreChange(-lost, (-lost, -lost), 0.5)
        return DropReport(1.0, half, half, change).message()

    assert "more than the 1 asked for" in told(0.03)
    assert "more than" not in told(0.005)


def test_what_was_trained_is_not_replaced(trained, tmp_path):
    """The model itself, another one; what the same command wrote is kept, unless it is asked to do it again."""
    words = ("prune", trained / "tuned", "--prune", "50%")
    for folder in (trained / "tuned", trained / "model"):
        before = (folder / "model.safetensors").read_bytes()
        with pytest.raises(CheckpointError, match=r"would be lost|holds another model .*which would be replaced"):
            call(*words, "--out", folder)
        assert (folder / "model.safetensors").read_bytes() == before
    half = (*words, "--out", tmp_path / "half")
    assert "chosen at random (seed 0" in call(*half)
    found = (tmp_path / "half" / "model.safetensors").stat()
    assert "is kept; --force makes it anew" in call(*half)
    assert (tmp_path / "half" / "model.safetensors").stat() == found
    assert "chosen at random (seed 0" in call(*half, "--force")
    assert "would remove" in call(*words, "--dry-run", "--out", tmp_path / "half")
    assert json.loads((tmp_path / "half" / "prune.json").read_text())["heads"] == [8, 4]
    call("prune", tmp_path / "half", "--prune", "1", "--out", tmp_path / "less")
    assert json.loads((tmp_path / "less" / "prune.json").read_text())["heads"] == [4, 3]
    with pytest.raises(CheckpointError, match=r"`headprune prune` made .*prune\.json"):
        call("prune", trained / "tuned", "--prune", "25%", "--out", tmp_path / "half")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "table.csv").write_text("mine")
    with pytest.raises(CheckpointError, match=r"headprune did not make: table\.csv"):
        call(*words, "--out", tmp_path / "data")
    for command in ("finetune", "export"):
        more = ("--data-dir", trained / "data") if command == "finetune" else ()
        with pytest.raises(CheckpointError, match="the model itself"):
            call(command, trained / "tuned", *more, "--out", trained / "tuned")


def test_companions_of_a_model_come_along(tmp_path):
    """Weights of its parts, its card, and nothing twice where the target lies inside the source."""
    source = tmp_path / "source"
    tiny_model("bert").save_pretrained(source)
    (source / "2_Dense").mkdir()
    (source / "2_Dense" / "model.safetensors").write_text("dense")
    (source / "README.md").write_text("# Mine\n")
    words = ["prune", str(source), "--heads", "encoder.0:1", "--out", str(source / "small")]
    CliRunner().invoke(app, words, catch_exceptions=False)
    small = source / "small"
    assert (small / "2_Dense" / "model.safetensors").read_text() == "dense"
    assert (small / "README.md").read_text().startswith("# Mine")
    assert "Removed attention heads" in (small / "README.md").read_text()
    assert not (small / "small").exists()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--pattern", "top:1", "--at-least", "1"], "--at-least has no effect with --pattern"),
        (["--heads", "encoder.0:1", "--unit", "group"], "--unit has no effect with --heads"),
        (["--macs", "80%", "--method", "random", "--per", "site"], "--per has no effect with --macs"),
        (["--prune", "50%", "--unit", "foo"], "No --unit called 'foo'"),
        (["--prune", "50%", "--per", "bar"], "No --per called 'bar'"),
        (["--prune", "50%", "--recover", "least-sqares"], "Did you mean 'least-squares'"),
        (["--prune", "50%", "--at-least", "-5"], "--at-least is -5; expected 0 or more"),
        (["--macs", "80%", "--method", "random", "--length", "0"], "--length is 0; expected 1 or more"),
        (["--max-drop", "-1", "--method", "random"], "--max-drop is -1.0; expected 0 or more"),
        (["--budget", "macs", "--method", "random"], "expected a name and an amount, like macs=80%"),
        (["--budget", "mac=80%", "--method", "random"], "No budget called 'mac'. Did you mean 'macs'?"),
        (["--budget", "macs=80%", "--prune", "1"], "You gave two amounts"),
    ],
)
def test_options_that_mean_nothing_are_refused(options, told):
    """Before the model is loaded: there is none."""
    found = CliRunner().invoke(app, ["prune", "no-such-model", "--dry-run", *options])
    assert isinstance(found.exception, HeadpruneError | SystemExit)
    assert told in " ".join((found.output + str(found.exception)).split())


def test_the_macs_that_are_told_are_those_that_were_asked_for(tmp_path):
    """At --length, not on a small batch."""
    model = tiny_model("llama", auto=AutoModelForCausalLM)
    model.save_pretrained(tmp_path / "model")
    options = ["--macs", "85%", "--length", "60", "--scores", str(tmp_path / "scores.json"), "--dry-run", "--json"]
    scores = hp.score(model, method="random", heads=hp.find_heads(model))
    (tmp_path / "scores.json").write_text(scores.to_json())
    found = CliRunner().invoke(app, ["prune", str(tmp_path / "model"), "--unit", "group", *options])
    before, after = json.loads(found.output)["macs"]
    example = sized_example(model, 1, 60)
    assert before == hp.measure(model, example=example, repeats=0).macs.total
    assert after <= 0.85 * before


def test_what_training_left_is_not_part_of_the_smaller_model(tmp_path):
    """No checkpoints, no fine-tuning report; the tokenizer is."""
    data, model = write_data(tmp_path / "data", 20, 12), write_model(tmp_path / "model")
    call("finetune", model, "--data-dir", data, "--epochs", 1, "--out", tmp_path / "tuned", "--json")
    call("prune", tmp_path / "tuned", "--prune", "50%", "--out", tmp_path / "small")
    names = {path.name for path in (tmp_path / "small").iterdir()}
    assert "tokenizer.json" in names
    assert not names & {"checkpoints", "finetune.json"}
