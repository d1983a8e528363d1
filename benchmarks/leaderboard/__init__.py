"""The leaderboard: which way of choosing and repairing heads loses least, as cells in a file and as a page."""

from benchmarks.leaderboard.cells import BASELINE, WINNER, Spec, add_cell, cell, read_cells, spec_of, specs, write_cells
from benchmarks.leaderboard.page import Hardest, hardest, on_average, page

__all__ = [
    "BASELINE",
    "WINNER",
    "Hardest",
    "Spec",
    "add_cell",
    "cell",
    "hardest",
    "on_average",
    "page",
    "read_cells",
    "spec_of",
    "specs",
    "write_cells",
]
