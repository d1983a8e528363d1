"""prune with a method, a repair and a budget, and the leaderboard, on a toy task from end to end."""

from __future__ import annotations

import json
import re

import pytest
from benchmarks.leaderboard import BASELINE, page, read_cells, spec_of, specs, write_cells
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForSequenceClassification
from typer.testing import CliRunner

import headprune as hp
from headprune.cli.app import app
from headprune.cost.macs import count_parameters
from headprune.errors import DataError, FileFormatError, MaskError, UnknownNameError
from tests.tasks.toy import write_data, write_model


def call(*words):
    return CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False).stdout


def called(*words):
    told = call(*words, "--json")
    return json.loads(told[min(told.find(c) for c in "{[" if c in told) :])


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """A toy classifier and its data."""
    root = tmp_path_factory.mktemp("toy")
    write_data(root / "data")
    write_model(root / "model")
    call("finetune", root / "model", "--data-dir", root / "data", "--epochs", 6, "--lr", 3e-3, "--batch-size", 20,
         "--seed", 0, "--out", root / "tuned")  # fmt: skip
    return root


def prune(toy, *words):
    return called("prune", toy / "tuned", "--task", "sst2", "--data-dir", toy / "data", *words)


def test_best_chooses_repairs_and_saves(toy, tmp_path):
    """The folder loads, has half of the heads, and says how it was made."""
    told = prune(toy, "--method", "best", "--prune", "50%", "--out", tmp_path / "small")
    assert told["heads"] == [8, 4]
    assert told["recovery"]["method"] == "least-squares"
    assert told["recovery"]["error_left"] < 1
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path / "small")
    assert len(hp.find_heads(loaded)) == 4
    assert loaded.config.headprune["history"][-1]["recovered"] == "least-squares"


@pytest.mark.parametrize("method", ["sensitivity", "residual", "reconstruction", "fisher-block"])
def test_any_method_and_repair(toy, tmp_path, method):
    """With and without repair, the same heads go in one round."""
    kept = [
        prune(toy, "--method", method, "--prune", 3, "--recover", recover, "--out", tmp_path / recover)["kept"]
        for recover in ("none", "bias", "rescale")
    ]
    assert kept[0] == kept[1] == kept[2]


def test_budgets_of_parameters_and_macs(toy, tmp_path):
    """At most what was asked for, as a share or a count."""
    model = AutoModelForSequenceClassification.from_pretrained(toy / "tuned")
    total = count_parameters(model, hp.find_heads(model)).total
    for asked in ("80%", str(int(0.8 * total))):
        told = prune(toy, "--method", "sensitivity", "--params", asked, "--dry-run")
        assert told["parameters"][1] <= 0.8 * total
        assert told["heads"][1] > 0
    told = prune(toy, "--method", "sensitivity", "--macs", "85%", "--length", 24, "--dry-run")
    assert told["heads"][1] < 8
    with pytest.raises(MaskError, match="what is not attention"):
        prune(toy, "--method", "sensitivity", "--params", "10%", "--dry-run")


def test_uniform_masks_can_be_exported_plain(toy, tmp_path):
    """The same number of heads in every layer: a plain checkpoint."""
    told = prune(toy, "--method", "best", "--prune", "50%", "--uniform", "--out", tmp_path / "small")
    assert {len(heads) for heads in told["kept"].values()} == {2}
    told = prune(toy, "--method", "sensitivity", "--params", "85%", "--uniform", "--dry-run")
    assert len({len(heads) for heads in told["kept"].values()}) == 1


def test_a_speed_up_is_told_as_measured(toy, monkeypatch):
    """By a clock that counts multiplications: a toy's passes are too short for time on a busy machine."""

    def counted(tasks, repeats, warmup, after):
        times = []
        for task in tasks:
            with FlopCounterMode(display=False) as counter:
                task()
            times.append([float(counter.get_total_flops())] * repeats)
        return times

    monkeypatch.setattr("headprune.budgets.costs.interleaved", counted)
    told = prune(toy, "--method", "sensitivity", "--speedup", 1.2, "--length", 24, "--dry-run")
    asked, measured = (float(number) for number in re.findall(r"\d\.\d+", told["by"])[:2])
    assert asked == 1.2
    assert measured == pytest.approx(told["macs"][0] / told["macs"][1], rel=0.1)
    assert 0 < told["heads"][1] < 8
    with pytest.raises(MaskError, match="with as few as allowed, 0 of 8"):
        prune(toy, "--method", "sensitivity", "--speedup", 9, "--length", 24, "--dry-run")


def test_neurons_alone_and_together_with_heads(toy, tmp_path):
    """A quarter of the neurons; then a budget that heads and neurons share."""
    told = prune(
        toy, "--parts", "neurons", "--method", "sensitivity", "--recover", "least-squares", "--prune", "25%", "--out",
        tmp_path / "neurons",
    )  # fmt: skip
    assert told["recovery"]["error_left"] <= 1.0
    assert all(site.startswith("neurons.") for site in told["removed"])
    loaded = hp.find_heads(AutoModelForSequenceClassification.from_pretrained(tmp_path / "neurons"), neurons=True)
    assert len(loaded.neurons) == round(0.75 * sum(site.original_num_heads for site in loaded.neurons))
    assert len(loaded.attention) == sum(site.original_num_heads for site in loaded.attention)
    told = prune(toy, "--parts", "both", "--method", "best", "--params", "95%", "--out", tmp_path / "both")
    before, after = told["parameters"]
    assert 0.9 * before < after <= 0.95 * before
    scores = called("score", toy / "tuned", "--task", "sst2", "--data-dir", toy / "data", "--parts", "neurons", "--out",
                    tmp_path / "scores")  # fmt: skip
    assert all(site.startswith("neurons.") for site in scores["scores"])
    file = tmp_path / "scores" / "scores.json"
    told = prune(toy, "--parts", "neurons", "--scores", file, "--params", "98%", "--dry-run")
    assert told["parameters"][1] <= 0.98 * told["parameters"][0]
    assert told["neurons"][1] < told["neurons"][0]
    told = prune(toy, "--heads", "neurons.0:3,encoder.1:0", "--dry-run")
    assert told["removed"] == {"encoder.1": [0], "neurons.0": [3]}
    with pytest.raises(MaskError, match="cannot be equally many"):
        prune(toy, "--parts", "both", "--uniform", "--method", "best", "--params", "90%", "--dry-run")
    with pytest.raises(MaskError, match="share of both means nothing"):
        prune(toy, "--parts", "both", "--method", "best", "--prune", "50%", "--dry-run")


def test_a_random_choice_keeps_what_every_site_must_have(toy):
    """--at-least and --per mean the same without scores."""
    for seed in range(6):
        told = prune(toy, "--prune", "75%", "--at-least", 1, "--seed", seed, "--dry-run")
        assert all(told["kept"].values())
        told = prune(toy, "--prune", "50%", "--per", "site", "--seed", seed, "--dry-run")
        assert {len(heads) for heads in told["kept"].values()} == {2}


def test_max_drop_with_a_repair(toy, tmp_path):
    """The drop is that of the repaired model."""
    told = prune(toy, "--method", "residual", "--recover", "least-squares", "--max-drop", 2, "--out", tmp_path / "x")
    assert told["budget"]["validation"]["pruned"]["score"] >= told["budget"]["validation"]["full"]["score"] - 0.02


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--speedup", 1.5), "needs an order"),
        (("--method", "best", "--scores", "x.json", "--prune", "1"), "both say"),
        (("--method", "best", "--heads", "encoder.0:1"), "say it all"),
        (("--params", "80%", "--prune", "1", "--method", "best"), "one of"),
    ],
)
def test_options_that_contradict_each_other(toy, words, told):
    """Before anything is loaded."""
    with pytest.raises(MaskError, match=told):
        prune(toy, *words, "--dry-run")


def test_a_method_needs_data(toy):
    """Scored on what?"""
    with pytest.raises(MaskError, match="--task"):
        call("prune", toy / "tuned", "--method", "best", "--prune", "1", "--dry-run")


def test_cells_of_the_board_are_computed_once_and_again_on_request(toy, tmp_path):
    """A board of one model; a cell that is there is left alone, and the same when asked for again."""
    board, text = tmp_path / "board.json", tmp_path / "board.md"
    names = [f"minilm/sst2/{way}/0.50/0/1" for way in ("sensitivity/none", "best/least-squares", "random/none")]
    where = ("--model", f"minilm/sst2={toy / 'tuned'}", "--data-dir", toy / "data", "--out", board)
    first = called("bench", "leaderboard", *where, *(word for name in names for word in ("--cell", name)))
    assert [spec_of(cell).name for cell in first] == names
    assert [("against" in cell) for cell in first] == [False, True, True]
    (again,) = called("bench", "leaderboard", *where, "--cell", names[1], "--page", text)
    assert {**again, "seconds": 0} == {**first[1], "seconds": 0}
    assert text.read_text() == page(read_cells(board))
    assert "| best | least-squares |" in text.read_text()
    trained = [f"minilm/sst2/{way}/none/0.50/1/1" for way in ("sensitivity", "voita", "shim", "budhraja")]
    cells = called("bench", "leaderboard", *where, *(word for name in trained for word in ("--cell", name)))
    assert [cell["heads"] for cell in cells] == [4] * 4
    assert {spec_of(cell).name for cell in read_cells(board)} == {*names, *trained}
    kept = board.read_text()
    write_cells(board, [{**cell, "nll_full": cell["nll_full"] + 0.01} for cell in read_cells(board)])
    with pytest.raises(DataError, match="another model"):
        call("bench", "leaderboard", *where, "--cell", names[1])
    board.write_text(kept)
    with pytest.raises(UnknownNameError, match="Did you mean"):
        call("bench", "leaderboard", *where, "--cell", "minilm/sst2/best/least-square/0.50/0/1")
    with pytest.raises(DataError, match="NAME/DATA=FOLDER"):
        call("bench", "leaderboard", "--model", "minilm=x")


def test_the_board_has_no_cell_twice_and_survives_a_bad_file(tmp_path):
    """Names are keys; what cannot be read is not overwritten."""
    names = [spec.name for spec in specs()]
    assert len(names) == len(set(names))
    assert {(spec.method, spec.recover) for spec in specs()} > {BASELINE, ("best", "least-squares")}
    board = tmp_path / "board.json"
    board.write_text('[{"model": 1}]')
    with pytest.raises(FileFormatError, match="cannot be read"):
        read_cells(board)
    board.unlink()
    write_cells(board, [])
    assert read_cells(board) == []
