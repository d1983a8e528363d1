"""The leaderboard: every way of pruning without training, cell by cell; goes on where it stopped."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from benchmarks.leaderboard.entrant import Entrant

from headprune.cli.options import Json, progress
from headprune.errors import DataError

if TYPE_CHECKING:
    from benchmarks.leaderboard import Spec

BOARD = Path("benchmarks/results/leaderboard.json")
SAME_MODEL = 1e-4  # between machines, sums are rounded otherwise

bench = typer.Typer(help="Measure what headprune claims.", no_args_is_help=True)


@bench.callback()
def measure_claims() -> None:
    """Measure what headprune claims."""


@bench.command("leaderboard")
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
    json: Json = False,
) -> None:
    """Compare ways of choosing and repairing heads: without training, and with one epoch of it."""
    from benchmarks.leaderboard import add_cell, read_cells, spec_of, specs
    from benchmarks.leaderboard import cell as cell_of
    from benchmarks.leaderboard import page as page_of

    from headprune.files import write_text
    from headprune.registry import known_name

    folders = dict(_pair(text) for text in model or [])
    every = {spec.name: spec for spec in specs()}
    places = {f"{spec.model}/{spec.data}": None for spec in every.values()}
    for place in folders:
        known_name("model of the board", place, places)
    for name in cell or []:
        known_name("cell", name, every)
    known = {spec_of(found).name for found in read_cells(out)}
    wanted = [every[name] for name in cell] if cell else [spec for spec in every.values() if spec.name not in known]
    wanted = [spec for spec in wanted if f"{spec.model}/{spec.data}" in folders]
    wanted = [spec for spec in wanted if not only or any(part in spec.name for part in only)]
    if (model or cell) and not wanted and not page:
        raise DataError("Nothing to do: every cell of these models is in the file, or no folder was given for them.")
    done: list[dict[str, Any]] = []
    entrants: dict[str, Entrant] = {}
    with progress(len(wanted)) as step:
        for spec in wanted:
            step(spec.name)
            if not cell and spec.name in {spec_of(found).name for found in read_cells(out)}:
                continue  # another command did it in the meantime
            place = f"{spec.model}/{spec.data}"
            if place not in entrants:
                entrants = {place: Entrant.of(folders[place], spec.data, data_dir)}  # one at a time
                _check_same_model(spec, folders[place], entrants[place].full_log_loss(), read_cells(out))
            done.append(cell_of(spec, entrants[place].measured(spec)))
            add_cell(out, done[-1])
    cells = read_cells(out)
    if page is not None:
        write_text(page, page_of(cells))
    if json:
        typer.echo(json_module.dumps(done, indent=1))
        return
    typer.echo(f"{len(done)} cells computed, {len(cells)} of {len(every)} in {out}")


def _check_same_model(spec: Spec, folder: str, here: float, cells: list[dict[str, Any]]) -> None:
    """Cells of two models in one table would be no comparison: whole, they must answer alike."""
    there = {round(float(c["nll_full"]), 6) for c in cells if (c["model"], c["data"]) == (spec.model, spec.data)}
    for known in sorted(there):
        if abs(known - here) > SAME_MODEL * max(abs(known), 1.0):
            raise DataError(
                f"With all its heads, the model in '{folder}' has a log-loss of {here:.6f}; the "
                f"{spec.model}/{spec.data} of the file has {known:.6f}. It is another model: choose another --out, or "
                "take these cells out of the file."
            )


def _pair(text: str) -> tuple[str, str]:
    name, separator, folder = text.partition("=")
    if not separator or name.count("/") != 1:
        raise DataError(f"Found --model {text!r}; expected NAME/DATA=FOLDER, as minilm/sst2=models/sst2.")
    return name, folder


if __name__ == "__main__":
    bench()
