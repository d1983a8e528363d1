"""The cells of the leaderboard, and the file that they are in."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.leaderboard.by_cost import BUDGETS, CostSpec, cost_spec_of, cost_specs, is_by_cost
from filelock import FileLock

from headprune.errors import FileFormatError
from headprune.files import loads, write_text

SEEDS = (1, 2, 3)
LARGEST = 1e100  # a number of a cell; nan is not below it
ORDERS = (
    "random", "magnitude", "output-norm", "confidence", "entropy", "relevance", "sensitivity", "sensitivity-entropy",
    "fisher", "fisher-block", "ablation", "all-but-one", "reconstruction", "residual", "curvature",
)  # fmt: skip
BASELINE = ("sensitivity", "none")  # Michel et al.
WINNER = ("best", "least-squares")
ALSO_REPAIRED = (
    *((order, "least-squares") for order in ("random", "reconstruction", "residual", "ablation", "fisher-block")),
    ("sensitivity", "bias"), ("sensitivity", "rescale"),
)  # fmt: skip
# `curvature` with least squares is `best`.
WAYS = (
    BASELINE, WINNER, *((order, "none") for order in ORDERS if order != BASELINE[0]), ("sensitivity", "least-squares"),
)  # fmt: skip
TRAINED = (
    BASELINE,  # Michel et al.
    WINNER, ("reconstruction", "least-squares"), ("residual", "least-squares"),
    ("voita", "none"),  # Hard Concrete gates towards a number of heads, within the same steps
    ("shim", "none"),  # Binary Concrete gates with warm-up, initial value and scaling
    ("budhraja", "none"),  # as many random heads from every layer
    ("random", "none"),
)  # fmt: skip
CLASSIFIERS = (("minilm", "sst2"), ("minilm", "mrpc"), ("minilm", "cola"), ("mpnet", "sst2"))
LANGUAGE_MODELS = (("smollm2", "wikitext2"),)
SMALL = ("minilm",)  # the others take minutes a cell
# What comes nearest to `best`: on MiniLM with repair, and on SmolLM2 without.
RIVALS = (("reconstruction", "least-squares"), ("residual", "least-squares"))
REPAIRED = {"minilm": ALSO_REPAIRED, "mpnet": RIVALS, "smollm2": (*RIVALS, ("ablation", "least-squares"))}


@dataclass(frozen=True)
class Spec:
    """One cell: what is pruned how, and how much of it."""

    model: str
    data: str
    method: str
    recover: str
    prune: float
    epochs: int
    seed: int

    @property
    def name(self) -> str:
        return f"{self.model}/{self.data}/{self.method}/{self.recover}/{self.prune:.2f}/{self.epochs}/{self.seed}"

    @property
    def place(self) -> str:
        """The model and the data that it is tuned on."""
        return f"{self.model}/{self.data}"

    @property
    def unit(self) -> str:
        """Language models here share keys and values among heads: whole groups go."""
        return "group" if (self.model, self.data) in LANGUAGE_MODELS else "head"

    @property
    def is_small(self) -> bool:
        return self.model in SMALL


def specs() -> list[Spec]:
    """Every cell. Of each model what is compared most comes first, so that a board in the making says something."""
    found = []
    for model, data in (*CLASSIFIERS, *LANGUAGE_MODELS):
        shares = (1 / 3, 2 / 3) if (model, data) in LANGUAGE_MODELS else (0.25, 0.5, 0.75)
        ways = (*WAYS, *REPAIRED[model])
        found += [Spec(model, data, *way, share, 0, seed) for way in ways for seed in SEEDS for share in shares]
    trained = [
        Spec("minilm", "sst2", *way, share, 1, seed) for way in TRAINED for seed in SEEDS for share in (0.5, 0.75)
    ]
    return found + trained


def read_cells(path: Path) -> list[dict[str, Any]]:
    """The cells of a file; none if there is no file yet."""
    if not path.exists():
        return []
    try:
        cells = loads(path.read_text(encoding="utf-8"))
        for cell in cells:
            _check(cell)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FileFormatError(f"The leaderboard '{path}' cannot be read ({type(error).__name__}: {error}).") from error
    return list(cells)


def _check(cell: Mapping[str, Any]) -> None:
    """What the page needs, as it needs it: a KeyError, TypeError or ValueError for anything else."""
    against = cell.get("against") if isinstance(cell, dict) else None
    compared = [against["change"], *against["interval"]] if against else [0.0] * 3
    if isinstance(cell, dict) and is_by_cost(cell):
        _check_by_cost(cell)
        numbers = [cell[name] for name in ("full", "score", "seconds")]
    else:
        numbers = [cell[name] for name in ("prune", "full", "score", "nll_full", "nll", "seconds")]
    if not all(type(n) in (int, float) and abs(n) < LARGEST for n in (*numbers, *compared)) or len(compared) != 3:
        raise ValueError(f"not all numbers: {str(cell)[:200]}")
    if not all(isinstance(cell[name], str) for name in ("model", "data", "method", "recover", "metric")):
        raise ValueError(f"not all texts: {str(cell)[:200]}")
    if not all(type(cell[name]) is int for name in ("epochs", "seed")):
        raise ValueError(f"epochs or seed: {str(cell)[:200]}")
    if cell["metric"] == "perplexity" and min(cell["full"], cell["score"]) <= 0:
        raise ValueError(f"a perplexity of {min(cell['full'], cell['score'])}")


def _check_by_cost(cell: Mapping[str, Any]) -> None:
    """What a cell of the board by cost has besides."""
    if cell["role"] not in ("development", "report"):
        raise ValueError(f"a role of {str(cell['role'])[:200]}")
    if cell["budget"] not in BUDGETS or not all(isinstance(cell[name], str) for name in ("parts", "asked_recover")):
        raise ValueError(f"a budget, or not all texts: {str(cell)[:200]}")
    if cell["metric"] == "perplexity" and None in (cell["nll"], cell["nll_full"]):
        raise ValueError(f"no log-loss: {str(cell)[:200]}")
    if type(cell["tuning"]) is not int or type(cell["examples"]) is not int:
        raise ValueError(f"tuning: {str(cell)[:200]}")
    change = cell["change"]
    numbers = [cell["amount"], cell["took"], cell["macs"], cell["speedup"], cell["control"], change["difference"]]
    numbers += [*change["interval"], *cell["control_spread"]]
    numbers += [cell[name] for name in ("nll_full", "nll", "ece_full", "ece") if cell[name] is not None]
    if not all(type(n) in (int, float) and abs(n) < LARGEST for n in numbers):
        raise ValueError(f"not all numbers: {str(cell)[:200]}")
    if len(change["interval"]) != 2 or len(cell["control_spread"]) != 2:
        raise ValueError(f"an interval: {str(cell)[:200]}")


def write_cells(path: Path, cells: Iterable[Mapping[str, Any]]) -> None:
    every: list[Spec | CostSpec] = [*specs(), *cost_specs()]
    order = {spec.name: number for number, spec in enumerate(every)}
    ordered = sorted(cells, key=lambda cell: order.get(spec_of(cell).name, len(order)))
    write_text(path, json.dumps(list(ordered), indent=1) + "\n")


def add_cell(path: Path, new: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One more cell, or one anew; several commands may work on one file. Gives all that are there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(f".{path.name}.lock")):
        name = spec_of(new).name
        cells = [*(cell for cell in read_cells(path) if spec_of(cell).name != name), dict(new)]
        write_cells(path, cells)
    return cells


def spec_of(cell: Mapping[str, Any]) -> Spec | CostSpec:
    if is_by_cost(cell):
        return cost_spec_of(cell)
    return Spec(
        str(cell["model"]), str(cell["data"]), str(cell["method"]), str(cell["recover"]), float(cell["prune"]),
        int(cell["epochs"]), int(cell["seed"]),
    )  # fmt: skip


def cell(spec: Spec, measured: Mapping[str, Any]) -> dict[str, Any]:
    """A spec and what was measured, as the file has it."""
    return {**asdict(spec), **measured}
