"""The cells of the board by cost: models that are several times cheaper, by MACs left and by measured speed-up."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

BUDGETS = ("macs", "speedup", "prune", "whole")  # prune: heads alone; whole: nothing is chosen
SAME = "same"  # the repair of `best`, whatever it is
MACS = (0.8, 0.6, 0.4, 0.3, 0.2, 0.1)
SPEEDUPS = (1.5, 2.0, 3.0, 4.0)
RIVAL_MACS = (0.4, 0.2, 0.1)
TEXT_MACS = (0.8, 0.6)  # language models have less to spare
TRAINED_MACS = (0.1, 0.05)
TRAINED_EPOCHS = 3
BEST = ("best", SAME)
KWON = ("kwon", "mask-tuning")
RIVALS = (
    KWON, ("flap", "bias"),  # as published
    *((order, SAME) for order in ("kwon", "flap", "wanda", "sensitivity", "uniform", "magnitude", "random")),
)  # fmt: skip
FEW_RIVALS = (KWON, ("flap", "bias"), ("sensitivity", SAME))  # where a cell takes long
EVEN = {"uniform": "curvature", "magnitude": "magnitude", "random": "random"}  # the same share of every site, by what
# `best` with one ingredient off or another in its place: what `Shrinker.of` is told, and whether labels are shown.
# Levels are shifted between sites where `best` does not, and the other way round.
INGREDIENTS: dict[str, dict[str, Any]] = {
    "best-shifts": {}, "best-ridge": {"ridge": 1e-4}, "best-labels": {"labels": False},
    "best-heads": {"parts": "neurons"},
    "best-repair": {"recover": "none"}, "best-bias": {"recover": "bias"}, "best-stream": {"recover": "stream"},
}  # fmt: skip
INGREDIENT_MACS = {"best-heads": (0.4,)}  # less than that cannot be had with neurons alone
USUAL_INGREDIENT_MACS = (0.2, 0.1)
SHIFTS = 24.0  # passes for shifting levels, where `best` itself does not
FIRST_LAYERS = ("first-1", "first-2")
INT8 = ("int8-onnx", "int8-torchao")
HEADS = {"minilm": (0.25, 0.5, 0.75), "mpnet": (0.25, 0.5, 0.75), "smollm2": (1 / 3, 2 / 3)}  # gone, nothing else

DEVELOPMENT = {"minilm": ("mrpc", "cola", "sst2"), "mpnet": ("sst2",), "smollm2": ("wikitext2",)}
REPORT = {"minilm": ("tags", "snli", "imdb", "amazon"), "mpnet": ("snli",), "smollm2": ("books",)}
NEIGHBOURS = "neighbours"  # of sentences, for models that are not fine-tuned
TEXTS = ("wikitext2", "books")
OUT_OF_DOMAIN = {"amazon": "imdb"}  # scored on the one, fine-tuned and calibrated on the other
TUNINGS = (1, 2, 3)


@dataclass(frozen=True)
class CostSpec:
    """One cell: which model is made cheaper how, and by how much."""

    model: str
    data: str
    tuning: int
    method: str
    recover: str
    budget: str  # one of BUDGETS
    amount: float
    epochs: int = 0

    @property
    def name(self) -> str:
        way = f"{self.method}/{self.recover}/{self.budget}={self.amount:.4g}/{self.epochs}"
        return f"{self.model}/{self.data}-{self.tuning}/{way}"

    @property
    def place(self) -> str:
        """The fine-tuned model and what it is scored on."""
        return f"{self.model}/{self.data}-{self.tuning}"

    @property
    def role(self) -> str:
        return "development" if self.data in DEVELOPMENT.get(self.model, ()) else "report"

    @property
    def parts(self) -> str:
        return {"prune": "heads", "whole": "none"}.get(self.budget, "both")

    @property
    def seed(self) -> int:
        return self.tuning


def cost_specs() -> list[CostSpec]:
    """Every cell: development before report, small models before large ones; of each model `best` comes first."""
    found: list[CostSpec] = []
    for tasks in (DEVELOPMENT, REPORT):
        for model, data in ((model, data) for model, every in tasks.items() for data in every):
            for tuning in (1,) if data in TEXTS else TUNINGS:
                found += _of_place(model, data, tuning)
    for model in ("minilm", "mpnet"):
        found += [CostSpec(model, NEIGHBOURS, 1, *BEST, "macs", share) for share in MACS]
        found += [CostSpec(model, NEIGHBOURS, 1, *way, "macs", share) for way in FEW_RIVALS for share in RIVAL_MACS]
    return found


def _of_place(model: str, data: str, tuning: int) -> list[CostSpec]:
    def cells(way: tuple[str, str], budget: str, amounts: Iterable[float], epochs: int = 0) -> list[CostSpec]:
        return [CostSpec(model, data, tuning, *way, budget, amount, epochs) for amount in amounts]

    if data in OUT_OF_DOMAIN:
        return [*cells(BEST, "macs", MACS), *(c for way in (KWON, ("sensitivity", SAME)) for c in
                cells(way, "macs", RIVAL_MACS))]  # fmt: skip
    found = [*cells(BEST, "macs", MACS), *(c for way in _rivals(model) for c in cells(way, "macs", _rival_macs(data)))]
    if data in DEVELOPMENT[model]:
        found += cells(BEST, "prune", HEADS[model])
        if model == "minilm":
            found += [
                c
                for name in INGREDIENTS
                for c in cells((name, SAME), "macs", INGREDIENT_MACS.get(name, USUAL_INGREDIENT_MACS))
            ]
    if data in TEXTS:
        return found
    found += cells(BEST, "speedup", SPEEDUPS if model == "minilm" else SPEEDUPS[1::2])
    found += [c for way in FIRST_LAYERS for c in cells((way, "none"), "whole", (1.0,))]
    found += [c for way in INT8 for c in cells((way, "none"), "whole", (1.0,))]
    found += cells(("best+int8-onnx", SAME), "macs", (0.4, 0.2))
    trained = cells(BEST, "macs", TRAINED_MACS, TRAINED_EPOCHS) if model == "minilm" or tuning == 1 else []
    return [*found, *trained]


def _rivals(model: str) -> tuple[tuple[str, str], ...]:
    return RIVALS if model == "minilm" else FEW_RIVALS


def _rival_macs(data: str) -> tuple[float, ...]:
    return TEXT_MACS if data in TEXTS else RIVAL_MACS


def is_by_cost(cell: Mapping[str, Any]) -> bool:
    return "budget" in cell


def cost_spec_of(cell: Mapping[str, Any]) -> CostSpec:
    return CostSpec(
        str(cell["model"]), str(cell["data"]), int(cell["tuning"]), str(cell["method"]), str(cell["asked_recover"]),
        str(cell["budget"]), float(cell["amount"]), int(cell["epochs"]),
    )  # fmt: skip


def cost_cell(spec: CostSpec, measured: Mapping[str, Any]) -> dict[str, Any]:
    """A spec and what was measured, as the file has it. `macs` and `speedup` are what the model was found to have."""
    asked = {
        "model": spec.model, "data": spec.data, "role": spec.role, "tuning": spec.tuning, "method": spec.method,
        "asked_recover": spec.recover, "parts": spec.parts, "budget": spec.budget, "amount": spec.amount,
        "prune": spec.amount if spec.budget == "prune" else None, "epochs": spec.epochs, "seed": spec.seed,
    }  # fmt: skip
    return {**asked, **measured}


def core_hours(cells: Iterable[Mapping[str, Any]]) -> tuple[float, float]:
    """Processor time that the measured cells took, and an estimate for all that are missing: the median of cells of the
    same model and method, else of the same model, else of all."""
    done = [c for c in cells if is_by_cost(c)]
    known = {cost_spec_of(c).name for c in done}
    spent = sum(float(c["took"]) for c in done)
    missing = 0.0
    for spec in cost_specs():
        if spec.name in known:
            continue
        alike = [c for c in done if c["model"] == spec.model]
        closer = [c for c in alike if (c["method"], c["epochs"]) == (spec.method, spec.epochs)]
        times = [float(c["took"]) for c in closer or alike or done]
        weight = 1.0 if alike or not done else LARGER.get(spec.model, 1.0)
        missing += weight * (statistics.median(times) if times else 0.0)
    return spent / 3600, missing / 3600


LARGER = {"mpnet": 8.0, "smollm2": 12.0}  # times the work of MiniLM, for what was never measured
