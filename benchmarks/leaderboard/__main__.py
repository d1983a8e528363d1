"""`python -m benchmarks.leaderboard`: every way of pruning without training, cell by cell; goes on where it stopped."""

from __future__ import annotations

import json as json_module
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from benchmarks.leaderboard import Spec, add_cell, is_by_cost, pictures, read_cells, spec_of, specs
from benchmarks.leaderboard import cell as cell_of
from benchmarks.leaderboard import page as page_of
from benchmarks.leaderboard.measure import BoardModel

from headprune.errors import DataError, HeadpruneError
from headprune.files import write_text
from headprune.registry import known_name

BOARD = Path("benchmarks/results/leaderboard.json")
SAME_MODEL = 1e-4  # between machines, sums are rounded otherwise


def leaderboard(
    model: Annotated[
        list[str] | None, typer.Option(help="A model of the board, as NAME/DATA=FOLDER (minilm/sst2=…); repeatable.")
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Folder with the data, a folder per task.")] = None,
    cell: Annotated[
        list[str] | None, typer.Option(help="Only this cell, again: MODEL/DATA/METHOD/RECOVER/PRUNE/EPOCHS/SEED.")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Only cells whose name contains this: /best/, /1/2 …; repeatable.")
    ] = None,
    out: Annotated[
        Path,
        typer.Option(help="The file of cells; what is in it is not computed again. Several commands may share it."),
    ] = BOARD,
    page: Annotated[Path | None, typer.Option(help="Write the page from the file, too.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of text for people.")] = False,
) -> None:
    """Compare ways of choosing and repairing heads: without training, and with one epoch of it."""
    folders = dict(_pair(text) for text in model or [])
    every = {spec.name: spec for spec in specs()}
    places = {spec.place: None for spec in every.values()}
    for place in folders:
        known_name("model of the board", place, places)
    for name in cell or []:
        known_name("cell", name, every)
    wanted = [every[name] for name in cell] if cell else [spec for name, spec in every.items() if name not in _in(out)]
    wanted = [spec for spec in wanted if spec.place in folders]
    wanted = [spec for spec in wanted if not only or any(part in spec.name for part in only)]
    if (model or cell) and not wanted and not page:
        raise DataError("Nothing to do: every cell of these models is in the file, or no folder was given for them.")
    done = _computed(wanted, folders, data_dir, out, again=bool(cell))
    cells = read_cells(out)
    if page is not None:
        write_page(page, cells)
    there = sum(not is_by_cost(one) for one in cells)
    told = f"{len(done)} cells computed, {there} of {len(every)} in {out}"
    typer.echo(json_module.dumps(done, indent=1) if json else told)


def write_page(path: Path, cells: list[dict[str, Any]]) -> None:
    """The page, and its pictures in the folder `assets` beside it."""
    write_text(path, page_of(cells))
    for name, drawn in pictures(cells).items():
        (path.parent / "assets").mkdir(parents=True, exist_ok=True)
        write_text(path.parent / "assets" / name, drawn)


def _computed(
    wanted: list[Spec], folders: dict[str, str], data_dir: Path | None, out: Path, *, again: bool
) -> list[dict[str, Any]]:
    done: list[dict[str, Any]] = []
    entrants: dict[str, BoardModel] = {}
    for number, spec in enumerate(wanted, start=1):
        typer.echo(f"{number} of {len(wanted)}: {spec.name}", err=True)
        if not again and spec.name in _in(out):
            continue  # another command did it in the meantime
        if spec.place not in entrants:
            entrants = {spec.place: BoardModel.of(folders[spec.place], spec.data, data_dir)}  # one at a time
            _check_same_model(spec, folders[spec.place], entrants[spec.place].full_log_loss(), read_cells(out))
        done.append(cell_of(spec, entrants[spec.place].measured(spec)))
        add_cell(out, done[-1])
    return done


def _in(out: Path) -> set[str]:
    return {spec_of(found).name for found in read_cells(out)}


def _check_same_model(spec: Spec, folder: str, here: float, cells: list[dict[str, Any]]) -> None:
    """Cells of two models in one table would be no comparison: whole, they must answer alike."""
    alike = [c for c in cells if not is_by_cost(c) and (c["model"], c["data"]) == (spec.model, spec.data)]
    there = {round(float(c["nll_full"]), 6) for c in alike}
    for known in sorted(there):
        if abs(known - here) > SAME_MODEL * max(abs(known), 1.0):
            raise DataError(
                f"With all its heads, the model in '{folder}' has a log-loss of {here:.6f}; the "
                f"{spec.place} of the file has {known:.6f}. It is another model: choose another --out, or "
                "take these cells out of the file."
            )


def _pair(text: str) -> tuple[str, str]:
    name, separator, folder = text.partition("=")
    if not separator or name.count("/") != 1:
        raise DataError(f"Found --model {text!r}; expected NAME/DATA=FOLDER, as minilm/sst2=models/sst2.")
    return name, folder


app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
app.command()(leaderboard)

if __name__ == "__main__":
    try:
        app()
    except HeadpruneError as error:
        sys.exit(f"error: {error}")
