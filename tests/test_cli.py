"""The commands: what they write, print and refuse."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

import headprune as hp
from headprune.cli.app import app
from headprune.cli.options import amount
from headprune.errors import HeadpruneError, MaskError
from headprune.heads import HeadMap
from tests.families.tiny import tiny_model


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Folders with a tiny BERT and a tiny Llama."""
    root = tmp_path_factory.mktemp("models")
    for family in ("bert", "llama"):
        tiny_model(family).save_pretrained(root / family)
    (root / "bert" / "vocab.txt").write_text("hello")
    return root


def call(*words):
    """Run a command in this process; errors of ours come through."""
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    return result.stdout


def test_inspect_shows_a_table_and_a_picture(models, tmp_path):
    """As text, as JSON, and as files beside each other."""
    text = call("inspect", models / "bert", "--out", tmp_path)
    assert "8 heads in 2 sites" in text
    assert "encoder.1  ■ ■ ■ ■" in text
    heads = HeadMap.from_json((tmp_path / "heads.json").read_text())
    assert len(heads) == 8
    assert "<svg" in (tmp_path / "heads.svg").read_text()
    assert HeadMap.from_json(call("inspect", models / "bert", "--json")) == heads


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


BAD = {
    "unknown head": (["--heads", "encoder.0:9", "--dry-run"], "encoder.0:9"),
    "unknown site": (["--heads", "encoder.7", "--dry-run"], "encoder.7"),
    "a layer's number": (["--heads", "1:2", "--dry-run"], "Did you mean 'encoder.1'"),
    "nothing chosen": (["--dry-run"], "Say which heads go"),
    "two choices": (["--prune", "1", "--keep", "1", "--dry-run"], "one of"),
    "no place": (["--prune", "1"], "--out"),
    "bad amount": (["--prune", "half", "--dry-run"], "50%"),
    "bad unit": (["--prune", "1", "--unit", "gruop", "--dry-run"], "Did you mean 'group'"),
    "bad gqa": (["--prune", "1", "--gqa", "x", "--dry-run"], "'group', 'query', 'expand'"),
    "missing mask": (["--mask", "nowhere.json", "--dry-run"], "nowhere.json"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_gets_a_clear_error(case, models):
    """What was found, what was expected."""
    words, told = BAD[case]
    with pytest.raises(HeadpruneError, match=told.replace("'", ".").replace("(", r"\(")):
        call("prune", models / "bert", *words)


def test_errors_are_one_line_unless_debugging(models, capsys, monkeypatch):
    """No traceback for a typo; --debug shows it."""
    from headprune.cli import main

    monkeypatch.setattr("sys.argv", ["headprune", "inspect", str(models / "nowhere")])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 1
    told = capsys.readouterr().err.strip().splitlines()
    assert told[-2].startswith("error: ")
    assert told[-1] == "(more: headprune explain CheckpointError)"
    monkeypatch.setattr("sys.argv", ["headprune", "--debug", "inspect", str(models / "nowhere")])
    with pytest.raises(HeadpruneError):
        main()
    monkeypatch.setattr("headprune.cli.options.state.debug", False)


def test_amounts_on_the_command_line():
    """`50%` is a share, `72` a count."""
    assert amount("50%") == 0.5
    assert amount("12.5%") == 0.125
    assert amount("72") == 72
    assert isinstance(amount("1"), int)
    for text in ("half", "0.5", "-3", "50 %x", ""):
        with pytest.raises(MaskError):
            amount(text)


def test_the_demo_ends_with_a_page_and_an_equal_model(tmp_path):
    """On the real MiniLM and real reviews, only fewer of them; run again, it does not train again."""
    words = ("demo", "--train", 64, "--dev", 48, "--epochs", 1, "--out", tmp_path)
    result = json.loads(call(*words, "--json"))
    assert result["heads"][0] == 72
    assert result["heads"][1] <= 72
    assert result["largest_difference_from_masked"] < 1e-4
    assert json.loads((tmp_path / "demo.json").read_text()) == result
    page = (tmp_path / "index.html").read_text()
    assert page.count("plotly-graph-div") == 3
    assert (tmp_path / "plotly.min.js").stat().st_size > 1_000_000
    assert (tmp_path / "data" / "train.csv").read_text().count("\n") >= 65
    told = call(*words)
    assert "$ headprune finetune" not in told
    assert "$ headprune prune" in told


def test_a_fault_of_ours_is_told_without_a_traceback(capsys, monkeypatch):
    """It asks for a report; --debug shows where it was."""
    from headprune.cli import main

    def broken(*words):
        raise ZeroDivisionError("by nothing")

    monkeypatch.setattr("headprune.cli.app.app", broken)
    monkeypatch.setattr("headprune.cli.options.state.debug", False)
    with pytest.raises(SystemExit) as stop:
        main()
    told = capsys.readouterr().err
    assert stop.value.code == 1
    assert told.startswith("unexpected error: ZeroDivisionError: by nothing")
    assert "headprune doctor" in told
    assert "Traceback" not in told
    monkeypatch.setattr("headprune.cli.options.state.debug", True)
    with pytest.raises(ZeroDivisionError):
        main()


def test_the_doctor_finds_a_working_installation():
    """Versions, extras and devices for programs, and one line for people."""
    found = json.loads(call("doctor", "--json"))
    assert found["problems"] == []
    assert found["extras"] == {"tasks": [], "report": [], "ray": [], "onnx": [], "demo": []}
    assert found["packages"]["transformers"].startswith("5.")
    assert "cpu" in found["devices"]
    assert call("doctor").splitlines()[-1].startswith("everything works")


def test_the_doctor_names_what_is_missing_or_broken(monkeypatch):
    """An extra without its package, a version out of range, a model that cannot be pruned."""
    from headprune.cli import doctor

    known = doctor._version
    gone = {"ray": None, "plotly": None, "scipy": "0.1"}
    monkeypatch.setattr(doctor, "_version", lambda name: gone.get(name, known(name)))

    def refuse(*words, **more):
        raise MaskError("not today")

    monkeypatch.setattr("headprune.surgery.prune.prune_", refuse)
    result = CliRunner().invoke(app, ["doctor", "--json"])
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert found["extras"]["ray"] == ["ray"]
    assert found["extras"]["demo"] == ["plotly"]  # by the extra within it
    assert "scipy is 0.1" in found["problems"][0]
    assert "MaskError: not today" in found["problems"][1]
    assert "pip install 'headprune[ray]'" in CliRunner().invoke(app, ["doctor"]).stdout


def test_every_error_explains_itself():
    """All of them in a list, one of them in full; the note of an error leads there."""
    from headprune import errors

    names = [name for name, thing in vars(errors).items() if isinstance(thing, type)]
    told = call("explain")
    for name in names:
        assert name in told
        page = call("explain", name)
        assert "- " in page
        error = getattr(errors, name)("a message")
        assert str(error) == "a message"
        assert error.__notes__ == [f"More: headprune explain {name}"]
    assert "unit=" in call("explain", "MaskError")
    with pytest.raises(HeadpruneError, match="Did you mean 'MaskError'"):
        call("explain", "MaskEror")
