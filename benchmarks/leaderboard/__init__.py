"""The leaderboard: which way of choosing and repairing heads loses least, as cells in a file and as a page."""

from benchmarks.leaderboard.by_cost import CostSpec, cost_specs, is_by_cost
from benchmarks.leaderboard.cells import BASELINE, WINNER, Spec, add_cell, cell, read_cells, spec_of, specs, write_cells
from benchmarks.leaderboard.cost_page import pictures
from benchmarks.leaderboard.page import Hardest, hardest, on_average, page

__all__ = [
    "BASELINE",
    "WINNER",
    "CostSpec",
    "Hardest",
    "Spec",
    "add_cell",
    "cell",
    "cost_specs",
    "hardest",
    "is_by_cost",
    "on_average",
    "page",
    "pictures",
    "read_cells",
    "spec_of",
    "specs",
    "write_cells",
]
