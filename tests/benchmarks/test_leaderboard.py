"""The board in the repository: its page, and what the README claims of it."""

from __future__ import annotations

import json
import math

import pytest
from benchmarks.leaderboard import (
    BASELINE,
    WINNER,
    hardest,
    is_by_cost,
    on_average,
    page,
    read_cells,
    spec_of,
    specs,
    write_cells,
)  # fmt: skip
from benchmarks.leaderboard.__main__ import app
from typer.testing import CliRunner

from headprune.errors import DataError, FileFormatError, UnknownNameError
from tests.places import ROOT

CELLS = read_cells(ROOT / "benchmarks" / "results" / "leaderboard.json")
FIELDS = {
    "model", "data", "method", "recover", "prune", "epochs", "seed", "metric", "full", "score", "nll_full", "nll",
    "seconds",
}  # fmt: skip


def test_the_page_is_made_from_the_cells():
    """And every cell of the board is there, once."""
    assert (ROOT / "docs" / "leaderboard.md").read_text() == page(CELLS)
    by_heads = [cell for cell in CELLS if not is_by_cost(cell)]
    names = [spec_of(cell).name for cell in by_heads]
    assert len(names) == len(set(names))
    assert set(names) == {spec.name for spec in specs()}
    assert all(set(cell) >= FIELDS for cell in by_heads)


PLACES = list(dict.fromkeys((cell["model"], cell["data"]) for cell in CELLS if not is_by_cost(cell)))


def test_the_readme_shows_every_model_that_loses_much():
    """Also where `best` does not help as much; and with what both lose."""
    readme = (ROOT / "README.md").read_text()
    for model, data in PLACES:
        found = hardest(CELLS, model, data)
        if found is not None:
            row = [f"{model}, {data}", f"{found.share:.0%}", *map(found.shown, (found.full, found.rival, found.best))]
            row += [found.lost(found.rival_loss), found.lost(found.best_loss), f"{found.beyond} of {found.seeds}"]
            assert f"| {' | '.join(row)} |" in readme


@pytest.mark.parametrize(
    ("model", "ways", "told"),
    [
        ("minilm", 24, "{0:.2%} points on average, the next way {1:.2%}"),
        ("mpnet", 19, "{0:.2%} points, the next way {1:.2%}"),
        ("smollm2", 20, "{0:.3f} nats, the next way {1:.3f}"),
    ],
)
def test_best_loses_least_on_average(model, ways, told):
    """Over the tasks and shares of every model, of all ways that are measured on it."""
    rows = on_average(CELLS, model)
    assert len(rows) == ways
    assert rows[0][0] == WINNER
    text = told.format(rows[0][1][0], rows[1][1][0]).replace("%", "")
    assert text in (ROOT / "docs" / "without-training.md").read_text().replace("\n", " ")


@pytest.mark.parametrize(("model", "data"), [("minilm", "sst2"), ("mpnet", "sst2"), ("smollm2", "wikitext2")])
def test_best_loses_at_most_half_of_what_sensitivity_loses(model, data):
    """At the smallest share where that loses much, over all seeds, the paired intervals beyond parity."""
    found = hardest(CELLS, model, data)
    assert found is not None
    assert found.part <= 0.5
    assert found.beyond == found.seeds == 3


def test_the_smallest_share_that_loses_much_is_found():
    """By points, by nats, and not at all where a seed is missing."""

    def cell(way, share, seed, score, interval, metric="accuracy"):
        return {
            "model": "m", "data": "d", "method": way[0], "recover": way[1], "prune": share, "epochs": 0, "seed": seed,
            "metric": metric, "full": 0.9 if metric == "accuracy" else 30.0, "score": score,
            "nll_full": math.log(30.0), "nll": math.log(score), "seconds": 1.0,
            "against": {"change": 0.1, "interval": interval},
        }  # fmt: skip

    cells = [
        cell(way, share, seed, score, [0.01, 0.1] if seed == 1 else [-0.01, 0.1])
        for seed in (1, 2)
        for way, share, score in (
            (BASELINE, 0.5, 0.88), (WINNER, 0.5, 0.89), (BASELINE, 0.75, 0.8), (WINNER, 0.75, 0.87),
        )
    ]  # fmt: skip
    found = hardest(cells, "m", "d")
    assert (found.share, found.beyond, found.seeds) == (0.75, 1, 2)
    assert found.part == pytest.approx(0.3)
    assert hardest(cells[:-1], "m", "d") is None
    assert "| m, d | 75% | 90.00 | 80.00 | 10.00 points | 87.00 | 3.00 points | 30% | 1 of 2 |" in page(cells)
    texts = [cell(way, 0.33, 1, score, [-5, -1], "perplexity") for way, score in ((BASELINE, 60.0), (WINNER, 33.0))]
    assert hardest(texts, "m", "d").part == pytest.approx(0.0953 / 0.693, rel=1e-2)
    assert json.loads(json.dumps(cells)) == cells


def test_a_note_of_several_cells_is_told_once():
    """With the ways that it is true of."""
    by_heads = [cell for cell in CELLS if not is_by_cost(cell)]
    noted = [{**cell, "note": "a note of several"} for cell in by_heads if cell["model"] == "smollm2"]
    others = [cell for cell in by_heads if cell["model"] == "mpnet"]
    assert page([*noted, *others]).count("a note of several") == 1
    assert "sensitivity/none" in page(noted).split("Notes:")[1]


def board_command(*words):
    return CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False).stdout


def computed(*words):
    return json.loads(board_command(*words, "--json"))


def test_cells_of_the_board_are_computed_once_and_again_on_request(trained, tmp_path):
    """A board of one model; a cell that is there is left alone, and the same when asked for again."""
    board, text = tmp_path / "board.json", tmp_path / "board.md"
    names = [f"minilm/sst2/{way}/0.50/0/1" for way in ("sensitivity/none", "best/least-squares", "random/none")]
    where = ("--model", f"minilm/sst2={trained / 'tuned'}", "--data-dir", trained / "data", "--out", board)
    first = computed(*where, *(word for name in names for word in ("--cell", name)))
    assert [spec_of(cell).name for cell in first] == names
    assert [("against" in cell) for cell in first] == [False, True, True]
    (again,) = computed(*where, "--cell", names[1], "--page", text)
    assert {**again, "seconds": 0} == {**first[1], "seconds": 0}
    assert text.read_text() == page(read_cells(board))
    assert "| best | least-squares |" in text.read_text()
    tuned = [f"minilm/sst2/{way}/none/0.50/1/1" for way in ("sensitivity", "voita", "shim", "budhraja")]
    cells = computed(*where, *(word for name in tuned for word in ("--cell", name)))
    assert [cell["heads"] for cell in cells] == [4] * 4
    assert {spec_of(cell).name for cell in read_cells(board)} == {*names, *tuned}
    kept = board.read_text()
    write_cells(board, [{**cell, "nll_full": cell["nll_full"] + 0.01} for cell in read_cells(board)])
    with pytest.raises(DataError, match="another model"):
        board_command(*where, "--cell", names[1])
    board.write_text(kept)
    with pytest.raises(UnknownNameError, match="Did you mean"):
        board_command(*where, "--cell", "minilm/sst2/best/least-square/0.50/0/1")
    with pytest.raises(DataError, match="NAME/DATA=FOLDER"):
        board_command("--model", "minilm=x")


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
