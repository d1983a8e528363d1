"""`python -m benchmarks.leaderboard.cost`: the board by cost, cell by cell; goes on where it stopped."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from benchmarks.leaderboard.__main__ import BOARD, write_page
from benchmarks.leaderboard.by_cost import NEIGHBOURS, CostSpec, core_hours, cost_cell, cost_specs
from benchmarks.leaderboard.cells import add_cell, read_cells, spec_of
from benchmarks.leaderboard.comparisons import compared
from benchmarks.leaderboard.cost_model import CostModel, one_thread
from benchmarks.leaderboard.neighbours import EncoderModel
from benchmarks.leaderboard.places import Folders

from headprune.errors import BudgetError, DataError, HeadpruneError
from headprune.registry import known_name


def cost(
    data_dir: Annotated[Path, typer.Option(help="Folder with sst2, cola, mrpc and wikitext2.")],
    report_dir: Annotated[Path, typer.Option(help="Folder that report_data.sh made.")],
    models: Annotated[Path, typer.Option(help="Folder that models.sh made; smollm2 in it.")],
    mpnet: Annotated[Path, typer.Option(help="all-mpnet-base-v2, not fine-tuned.")] = Path(
        ".venv/models/all-mpnet-base-v2"
    ),
    role: Annotated[str, typer.Option(help="development, report or all.")] = "all",
    only: Annotated[list[str] | None, typer.Option(help="Only cells whose name contains this; repeatable.")] = None,
    cell: Annotated[list[str] | None, typer.Option(help="Only the cell of this name, again; repeatable.")] = None,
    out: Annotated[Path, typer.Option(help="The file of cells; several commands may share it.")] = BOARD,
    rows: Annotated[Path, typer.Option(help="Where answers are kept, to compare ways by.")] = Path(
        "build/leaderboard-rows"
    ),
    page: Annotated[Path | None, typer.Option(help="Write the page and its pictures from the file, too.")] = None,
    merge: Annotated[Path | None, typer.Option(help="Take the cells of another such file first.")] = None,
    estimate: Annotated[bool, typer.Option(help="Tell what all that is missing would take, and stop.")] = False,
) -> None:
    """Compare ways of making models cheaper, at equal MACs and at equal speed."""
    import headprune as hp

    for there in read_cells(merge) if merge is not None else []:
        add_cell(out, there)
    spent, missing = core_hours(read_cells(out))
    typer.echo(f"measured: {spent:.1f} core-hours; missing: about {missing:.1f}", err=True)
    if estimate:
        return
    known_name("role", role, ("development", "report", "all"))
    every = {spec.name: spec for spec in cost_specs()}
    for name in cell or []:
        known_name("cell", name, every)
    wanted = [every[name] for name in cell] if cell else list(every.values())
    wanted = [spec for spec in wanted if role in ("all", spec.role)]
    wanted = [spec for spec in wanted if not only or any(part in spec.name for part in only)]
    folders = Folders(data_dir, report_dir, models, {"minilm": Path(str(hp.demo_model())), "mpnet": mpnet})
    with one_thread():
        count, left_out = _computed(wanted, folders, out, rows, again=bool(cell))
    for changed in compared(read_cells(out), rows):
        add_cell(out, changed)
    if page is not None:
        write_page(page, read_cells(out))
    without = f"; no model yet for {', '.join(left_out)}" if left_out else ""
    typer.echo(f"{count} cells computed{without}")


def _computed(wanted: list[CostSpec], folders: Folders, out: Path, rows: Path, *, again: bool) -> tuple[int, list[str]]:
    """How many cells were computed, and the places whose models are not there."""
    count, left_out = 0, dict[str, None]()
    place, model = "", None
    for number, spec in enumerate(wanted, start=1):
        if spec.place in left_out or (not again and spec.name in _known(out)):
            continue
        typer.echo(f"{number} of {len(wanted)}: {spec.name}", err=True)
        try:
            if spec.place != place:
                model = None  # one at a time
                kind: Any = EncoderModel if spec.data == NEIGHBOURS else CostModel
                place, model = spec.place, kind.of(spec, folders, rows)
            assert model is not None, "loaded for its place"
            measured = model.measured(spec)
        except BudgetError as error:  # no model is as small, or as fast, by this way
            typer.echo(f"  left out: {error}", err=True)
            continue
        except DataError as error:
            typer.echo(f"  left out: {error}", err=True)
            if spec.place != place:
                left_out[spec.place] = None
            continue
        add_cell(out, cost_cell(spec, measured))
        count += 1
    return count, list(left_out)


def _known(out: Path) -> set[str]:
    return {spec_of(found).name for found in read_cells(out)}


app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
app.command()(cost)

if __name__ == "__main__":
    try:
        app()
    except HeadpruneError as error:
        sys.exit(f"error: {error}")
