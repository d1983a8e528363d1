"""The board by cost: which cells there are, how they are measured, what the page makes of them."""

from __future__ import annotations

import json
import math
from xml.etree import ElementTree

import pytest
import torch
from benchmarks.leaderboard import cost_specs, page, pictures, read_cells, spec_of, write_cells
from benchmarks.leaderboard.by_cost import KWON, core_hours, is_by_cost
from benchmarks.leaderboard.calibration_error import Confidences
from benchmarks.leaderboard.cost import app
from benchmarks.leaderboard.losses import lead_of, loss_of, over_both
from benchmarks.leaderboard.neighbours import nearest, staying_shares
from typer.testing import CliRunner

from headprune.errors import FileFormatError, UnknownNameError
from tests.places import ROOT

CELLS = [cell for cell in read_cells(ROOT / "benchmarks" / "results" / "leaderboard.json") if is_by_cost(cell)]
FIELDS = {
    "model", "data", "role", "tuning", "method", "recover", "parts", "prune", "macs", "speedup", "epochs", "seed",
    "metric", "full", "score", "nll_full", "nll", "seconds",
}  # fmt: skip


def test_every_cell_has_a_name_of_its_own_and_development_comes_first():
    """Names are keys; three fine-tunings of every classifier; report tasks wait for what is decided."""
    specs = cost_specs()
    assert len({spec.name for spec in specs}) == len(specs)
    roles = [spec.role for spec in specs]
    assert roles == sorted(roles)
    tunings = {}
    for spec in specs:
        tunings.setdefault((spec.model, spec.data), set()).add(spec.tuning)
    assert {place for place, found in tunings.items() if found == {1, 2, 3}} == {
        ("minilm", "sst2"), ("minilm", "cola"), ("minilm", "mrpc"), ("minilm", "snli"), ("minilm", "imdb"),
        ("minilm", "amazon"), ("minilm", "tags"), ("mpnet", "sst2"), ("mpnet", "snli"),
    }  # fmt: skip
    at_a_tenth = {(s.method, s.recover) for s in specs if s.place == "minilm/snli-1" and s.amount == 0.1}
    assert {("best", "same"), KWON, ("flap", "bias"), ("sensitivity", "same")} < at_a_tenth


def test_the_cells_in_the_repository_are_cells_of_the_board():
    """With everything that is promised of a cell, and its pictures beside the page."""
    names = [spec_of(cell).name for cell in CELLS]
    assert len(names) == len(set(names))
    assert set(names) <= {spec.name for spec in cost_specs()}
    assert all(set(cell) >= FIELDS for cell in CELLS)
    for name, drawn in pictures(CELLS).items():
        assert (ROOT / "docs" / "assets" / name).read_text() == drawn


def cell(method="best", recover="same", *, data="mrpc", tuning=1, amount=0.2, lost=1.0, half=0.5, **more):
    """One as the file has it: what it lost in points, and half of the interval over examples."""
    change = {"difference": -lost / 100, "interval": [(-lost - half) / 100, (-lost + half) / 100]}
    return {
        "model": "minilm", "data": data, "role": "development", "tuning": tuning, "method": method,
        "asked_recover": recover, "recover": recover, "parts": "both", "budget": "macs", "amount": amount,
        "prune": None, "epochs": 0, "seed": tuning, "metric": "accuracy", "full": 0.9, "score": 0.9 - lost / 100,
        "nll_full": 0.3, "nll": 0.4, "ece_full": 0.02, "ece": 0.03, "examples": 500, "change": change,
        "seconds": 10.0, "macs": amount - 0.001, "speedup": 4.2, "speedup_spread": [4.1, 4.3], "control": 1.0,
        "control_spread": [0.99, 1.02], "took": 30.0, **more,
    }  # fmt: skip


def test_an_interval_is_over_fine_tunings_and_examples():
    """Of one task by hand: t of two degrees of freedom, and examples whose part does not shrink with fine-tunings."""
    found = loss_of([cell(tuning=t, lost=x) for t, x in ((1, 1.0), (2, 2.0), (3, 3.0))])
    assert found.mean == pytest.approx(2.0)
    assert found.half == pytest.approx(math.sqrt((4.302653 * 1.0 / math.sqrt(3)) ** 2 + 0.5**2), rel=1e-5)
    two = over_both([[(1.0, 0.5)], [(3.0, 0.5)]])
    assert (two.mean, two.half) == (2.0, pytest.approx(math.hypot(0.5, 0.5) / 2))


def test_nats_are_lost_where_the_metric_is_perplexity():
    """With the interval of the perplexity taken along."""
    text = cell(metric="perplexity", full=math.exp(3), score=math.exp(3.2), nll_full=3.0, nll=3.2)
    gap = math.exp(3.2) - math.exp(3)
    text["change"] = {"difference": gap, "interval": [gap * 0.9, gap * 1.1]}
    found = loss_of([text])
    assert found.mean == pytest.approx(0.2)
    assert 0.01 < found.half < 0.03


def test_the_calibration_error_of_known_answers():
    """Four answers at 0.75, of which two are right; and one that is sure and right: (4 · 0.25 + 0) / 5."""
    kept = Confidences()
    sure, certain = math.log(3), 40.0
    logits = torch.tensor([[sure, 0.0]] * 4 + [[certain, 0.0]])
    kept.keep(type("Outputs", (), {"logits": logits}), {"labels": torch.tensor([0, 0, 1, 1, 0])})
    assert kept.error() == pytest.approx(0.2, abs=1e-6)
    words = Confidences()
    logits = torch.tensor([[[sure, 0.0], [9.0, 0.0]]])
    words.keep(type("Outputs", (), {"logits": logits}), {"labels": torch.tensor([[0, -100]])})
    assert words.error() == pytest.approx(0.25, abs=1e-6)


def test_neighbours_that_stay_are_counted():
    """The vectors of a line: the ten nearest of the first are the ten that follow; half of them are replaced."""
    angles = torch.arange(30) * 0.01
    vectors = torch.stack([angles.cos(), angles.sin()], dim=1)
    before = nearest(vectors)
    assert sorted(before[0].tolist()) == list(range(1, 11))
    after = before.clone()
    after[0, :5] = torch.arange(20, 25)
    shares = staying_shares(before, after)
    assert (shares[0], shares[1]) == (0.5, 1.0)


def test_the_page_tells_development_and_report_tasks_apart():
    """Each under a heading that says what its figures may be used for; the lead over Kwon et al. is told."""
    cells = [cell(tuning=t) for t in (1, 2, 3)]
    against = {"change": 0.02, "interval": [0.01, 0.03]}
    cells += [cell(*KWON, tuning=t, lost=3.0, against=against) for t in (1, 2, 3)]
    cells += [cell(data="snli", role="report")]
    text = page(cells)
    development, report = text.split("### Development tasks")[1].split("### Report tasks")
    assert "#### minilm, mrpc" in development
    assert "#### minilm, snli" in report
    assert "| best | 1.00 ± 0.50 | 0.400 | 0.030 | 4.20 | 10 |" in development
    assert development.index("| best |") < development.index("| Kwon et al. |")
    assert "| minilm | 20% | 2.00 ± 1.00 points | 1 | 3 |" in development
    assert lead_of(cells).mean == pytest.approx(2.0)
    assert "assets/leaderboard-minilm-mrpc.svg" in development


def test_the_page_tells_what_an_ingredient_buys():
    """Paired with `best`, on development tasks, and not among the rivals."""
    against = {"change": 0.015, "interval": [0.005, 0.025]}
    cells = [cell(tuning=t) for t in (1, 2, 3)]
    cells += [cell("best-repair", tuning=t, lost=2.5, against=against) for t in (1, 2, 3)]
    text = page(cells)
    assert "| any repair | 1.50 ± 1.00 |" in text
    assert "| best-repair" not in text
    (drawn,) = pictures(cells).values()
    assert "best-repair" not in drawn


def test_a_picture_has_one_line_a_way():
    """Well-formed, with the names of the ways as text."""
    cells = [cell(amount=a, lost=1 / a) for a in (0.4, 0.2)] + [cell(*KWON, amount=0.2, lost=9.0)]
    (drawn,) = pictures(cells).values()
    root = ElementTree.fromstring(drawn)
    assert len(root.findall("{*}polyline")) == 2
    assert {"best", "Kwon et al."} <= {text.text for text in root.findall("{*}text")}


def test_what_is_missing_is_estimated_by_cells_of_its_kind():
    """Half a minute for each cell of MiniLM, more for larger models."""
    spent, missing = core_hours([cell(tuning=t) for t in (1, 2, 3)])
    assert spent == pytest.approx(90 / 3600)
    small = sum(spec.model == "minilm" for spec in cost_specs()) - 3
    assert missing > small * 30 / 3600


def test_cells_that_are_damaged_are_refused(tmp_path):
    """Before a page is made of them."""
    board = tmp_path / "board.json"
    write_cells(board, [cell()])
    assert read_cells(board) == [cell()]
    more = ({"budget": "money"}, {"metric": "perplexity", "nll": None})
    for damage in (
        *more,
        {"role": "both"},
        {"macs": None},
        {"change": {"difference": 1.0, "interval": [1.0]}},
        {"tuning": "1"},
    ):
        board.write_text(json.dumps([{**cell(), **damage}]))
        with pytest.raises(FileFormatError, match="cannot be read"):
            read_cells(board)


def test_cells_of_another_file_are_taken_along(tmp_path):
    """Computed elsewhere; those that the board has already stay beside them. The estimate goes by all of them."""
    board, other = tmp_path / "board.json", tmp_path / "other.json"
    write_cells(board, [cell()])
    write_cells(other, [cell(tuning=2), cell(*KWON)])
    words = ["--data-dir", tmp_path, "--report-dir", tmp_path, "--models", tmp_path, "--out", board]
    run = CliRunner().invoke(app, list(map(str, [*words, "--merge", other, "--estimate"])), catch_exceptions=False)
    assert run.exit_code == 0
    names = {spec_of(one).name for one in read_cells(board)}
    assert names == {spec_of(one).name for one in (cell(), cell(tuning=2), cell(*KWON))}


@pytest.mark.long
def test_a_cell_is_computed_from_folders_and_once(trained, tmp_path):
    """A rival against `best` at the same MACs; a model that is not there is left out; a cell that is there stays."""
    models, board = tmp_path / "models", tmp_path / "board.json"
    models.mkdir()
    (models / "minilm-sst2-1").symlink_to(trained / "tuned")
    words = ["--data-dir", trained / "data", "--report-dir", tmp_path, "--models", models, "--out", board]
    words += ["--rows", tmp_path / "rows", "--page", tmp_path / "board.md"]
    for way in ("best/same", "kwon/mask-tuning", "random/same"):
        words += ["--only", f"minilm/sst2-1/{way}/macs=0.4/", "--only", f"minilm/sst2-2/{way}/macs=0.4/"]
    run = CliRunner().invoke(app, list(map(str, words)), catch_exceptions=False)
    assert run.stdout.strip() == "3 cells computed; no model yet for minilm/sst2-2"
    found = {cell["method"]: cell for cell in read_cells(board)}
    assert set(found["best"]) >= FIELDS
    assert all(0.2 < cell["macs"] <= 0.4 for cell in found.values())
    assert all(cell["speedup"] > 0 and 0 <= cell["ece"] <= 1 for cell in found.values())
    assert ["against" in found[way] for way in ("best", "kwon", "random")] == [False, True, True]
    against = found["kwon"]["against"]
    assert against["change"] == pytest.approx(found["best"]["score"] - found["kwon"]["score"])
    again = CliRunner().invoke(app, list(map(str, words)), catch_exceptions=False)
    assert again.stdout.startswith("0 cells computed")
    assert (tmp_path / "assets" / "leaderboard-minilm-sst2.svg").is_file()
    with pytest.raises(UnknownNameError, match="Did you mean"):
        CliRunner().invoke(
            app, [*map(str, words), "--cell", "minilm/sst2-1/best/sam/macs=0.4/0"], catch_exceptions=False
        )
