"""The board by cost on the page, and its pictures."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.leaderboard.by_cost import INGREDIENTS, KWON, cost_specs, is_by_cost
from benchmarks.leaderboard.losses import in_nats, lead_of, loss_of
from benchmarks.leaderboard.pictures import picture

Cell = Mapping[str, Any]
ROLES = {
    "development": "Development tasks: methods were chosen and tuned by looking at these figures",
    "report": "Report tasks: measured once, after every choice",
}
TOLD = (20, 40, 10)  # % of MACs at which log-loss, calibration error and speed-up are told: the first that there is
NAMES = {
    "kwon": "Kwon et al.", "flap": "FLAP", "wanda": "Wanda, structured", "uniform": "curvature, even shares",
    "magnitude": "magnitude, even shares", "random": "random, even shares", "first-1": "the first layer, fine-tuned",
    "first-2": "the first two layers, fine-tuned", "int8-onnx": "8 bits, onnxruntime",
    "int8-torchao": "8 bits, torchao (not compiled)", "best+int8-onnx": "best, then 8 bits, onnxruntime",
}  # fmt: skip


WITHOUT = {
    "best-shifts": "scores that are added up alone (levels are shifted between sites by measured effect as well)",
    "best-ridge": "a strength of the fit that is chosen for each site (1e-4 everywhere, as in 0.1.0)",
    "best-labels": "labels (the model's own answers instead)",
    "best-heads": "removing heads, too (neurons alone)",
    "uniform": "shares by the scores (the same share of every site)",
    "sensitivity": "scores that know of the repair (sensitivity instead)",
    "best-bias": "fitted weights (the mean of what goes is put into the bias)",
    "best-repair": "any repair",
    "best-stream": "a fit to what the site would write (aimed at the whole model's stream as well)",
}


SHIFTED = "adding up scores (levels shifted between sites by measured effect instead)"  # where `best` adds up


def cost_sections(cells: Sequence[Cell]) -> list[str]:
    """Everything about cost; nothing where no cell is measured."""
    mine = [cell for cell in cells if is_by_cost(cell)]
    if not mine:
        return []
    lines = [
        "## By cost",
        "",
        "Heads and neurons go together, within a budget of MACs (or until a forward pass was measured to be so many "
        "times as fast), both of 8 examples of 64 tokens. Speeds are ratios of processor time with one thread, in "
        "rounds of the whole model, the smaller one, and the whole one again, which is the control. Nothing is trained "
        "unless said. Every way gets the same 512 training examples (32 pieces of 256 tokens for language models), of "
        "which a quarter is held out for the price and for choices that a way makes itself; the others are fitted on. "
        "Three fine-tunings a classifier, each with calibration data of its own. Points lost are whole minus "
        "smaller; ± is half of a 95 % interval over both: Student's t over fine-tunings and a paired bootstrap over "
        "examples, their widths added as squares. `same` is the repair of `best`, given to another order.",
        "",
        f"{len(mine)} of {len(cost_specs())} cells are measured. `benchmarks/leaderboard/cost.sh` goes on where it "
        "stopped.",
    ]
    for role, title in ROLES.items():
        part = [cell for cell in mine if cell["role"] == role]
        if part:
            lines += ["", f"### {title}", *_leads(part), *_ingredients(part)]
            for model, data in dict.fromkeys((str(c["model"]), str(c["data"])) for c in part):
                lines += _place([c for c in part if (c["model"], c["data"]) == (model, data)], model, data)
    return [*lines, ""]


def pictures(cells: Sequence[Cell]) -> dict[str, str]:
    """File name -> SVG, one for each model and task."""
    found = {}
    mine = [cell for cell in cells if is_by_cost(cell) and (_is_by_macs(cell) or "+" in str(cell["method"]))]
    for model, data in dict.fromkeys((str(c["model"]), str(c["data"])) for c in mine):
        here = [c for c in mine if (c["model"], c["data"]) == (model, data)]
        lines = {}
        for way in _ways(here):
            points = []
            for amount in _amounts(here):
                loss = loss_of(_of(here, way, amount))
                if loss is not None:
                    points.append((amount, loss.mean))
            lines[_name(way)] = points
        unit = "nats" if in_nats(here[0]) else "points"
        found[_file(model, data)] = picture(f"{model}, {data} ({here[0]['role']} task)", unit, lines)
    return found


def _file(model: str, data: str) -> str:
    return f"leaderboard-{model}-{data}.svg"


def _name(way: tuple[str, str]) -> str:
    method, recover = way
    name = NAMES.get(method, method)
    return name if way == KWON or method in ("best", "best+int8-onnx") or recover == "none" else f"{name}, {recover}"


def _ways(cells: Sequence[Cell]) -> list[tuple[str, str]]:
    found = dict.fromkeys((str(c["method"]), str(c["asked_recover"])) for c in cells)
    return sorted(found, key=lambda way: way[0] != "best")  # best first, the others as they were asked for


def _amounts(cells: Sequence[Cell]) -> list[float]:
    return sorted({float(c["amount"]) for c in cells}, reverse=True)


def _of(cells: Sequence[Cell], way: tuple[str, str], amount: float) -> list[Cell]:
    return [c for c in cells if (c["method"], c["asked_recover"], float(c["amount"])) == (*way, amount)]


def _leads(cells: Sequence[Cell]) -> list[str]:
    """`best` against Kwon et al. as published, over all tasks of a model."""
    rows = []
    rivals = [c for c in cells if (c["method"], c["asked_recover"]) == KWON and c["budget"] == "macs"]
    for model in dict.fromkeys(str(c["model"]) for c in rivals):
        mine = [c for c in rivals if c["model"] == model]
        for unit, few in (("nats", [c for c in mine if in_nats(c)]), ("points", [c for c in mine if not in_nats(c)])):
            for amount in _amounts(few):
                lead = lead_of([c for c in few if float(c["amount"]) == amount])
                if lead is not None:
                    tasks = len({c["data"] for c in few if c.get("against")})
                    rows.append(f"| {model} | {amount:.0%} | {lead.shown()} {unit} | {tasks} | {lead.cells} |")
    if not rows:
        return []
    return [
        "", "How far `best` is ahead of Kwon et al. (search, rearrangement and mask tuning) at the same MACs:", "",
        "| model | MACs left | ahead by | tasks | models |", "|---|---:|---:|---:|---:|", *rows,
    ]  # fmt: skip


def _ingredients(cells: Sequence[Cell]) -> list[str]:
    """What each part of `best` buys: over the tasks and fine-tunings that have `best` and the other at a budget."""
    rows = []
    amounts = sorted({float(c["amount"]) for c in cells if c["method"] in INGREDIENTS}, reverse=True)
    tested = [c for c in cells if (c["model"], c["budget"], int(c["epochs"])) == ("minilm", "macs", 0)]
    known = {_case(c) for c in tested if c["method"] == "best"}
    for method, usual in WITHOUT.items():
        mine = [c for c in tested if c["method"] == method and c.get("against") and _case(c) in known]
        if mine:
            title = SHIFTED if method == "best-shifts" and mine[0].get("shifts") else usual
            told = (lead_of([c for c in mine if float(c["amount"]) == amount]) for amount in amounts)
            rows.append(f"| {title} | {' | '.join(lead.shown() if lead else '' for lead in told)} |")
    if not rows:
        return []
    return [
        "", "What each ingredient of `best` buys on MiniLM: points that are lost more without it, paired.", "",
        "| without | " + " | ".join(f"at {amount:.0%} of MACs" for amount in amounts) + " |",
        "|---|" + "---:|" * len(amounts), *rows,
    ]  # fmt: skip


def _is_by_macs(cell: Cell) -> bool:
    """Whether it is of the large tables: no training, no eight bits, no ingredient of `best`."""
    asked = cell["budget"] == "macs" and not int(cell["epochs"])
    return asked and "+" not in str(cell["method"]) and cell["method"] not in INGREDIENTS


def _case(cell: Cell) -> tuple[Any, ...]:
    return (cell["model"], cell["data"], cell["tuning"], float(cell["amount"]))


def _place(cells: Sequence[Cell], model: str, data: str) -> list[str]:
    """One model and task: ways by MACs, then by speed-up, heads alone, after training, and what else one could do."""
    metric, tunings = str(cells[0]["metric"]), {int(c["tuning"]) for c in cells}
    full = statistics.mean({int(c["tuning"]): float(c["full"]) for c in cells}.values())
    shown = f"{full:.2f}" if in_nats(cells[0]) else f"{100 * full:.2f}"
    many = f"{len(tunings)} fine-tuning{'s' if len(tunings) > 1 else ''}"
    lines = ["", f"#### {model}, {data}", "", f"Whole: {metric} {shown}, {many}, {cells[0]['examples']} examples."]
    macs = [c for c in cells if _is_by_macs(c)]
    if macs:
        lines += ["", f"![{model}, {data}: what is lost against the MACs that are left](assets/{_file(model, data)})"]
        lines += ["", *_by_macs(macs)]
    for title, chosen in (
        ("Until a forward pass is so many times as fast:", [c for c in cells if c["budget"] == "speedup"]),
        ("Heads alone:", [c for c in cells if c["budget"] == "prune"]),
        ("Three epochs of training after the cut, the whole model as teacher:", [c for c in cells if int(c["epochs"])]),
        ("What one could do instead, and both:", [c for c in cells if c["budget"] == "whole" or "+" in c["method"]]),
    ):
        if chosen:
            lines += ["", title, "", *_others(chosen)]
    return lines


def _by_macs(cells: Sequence[Cell]) -> list[str]:
    """Ways by what they lose at the least MACs that all have, the best first."""
    amounts, digits = _amounts(cells), 3 if in_nats(cells[0]) else 2
    told = next((a / 100 for a in TOLD if a / 100 in amounts), amounts[-1])
    unit = "nats" if in_nats(cells[0]) else "points"
    rows = []
    for way in _ways(cells):
        losses = [loss_of(_of(cells, way, amount)) for amount in amounts]
        here = _of(cells, way, told)
        extra = [_mean(here, "nll", 3), _mean(here, "ece", 3), _mean(here, "speedup", 2)]
        seconds = statistics.median(float(c["seconds"]) for c in cells if (c["method"], c["asked_recover"]) == way)
        row = [_name(way), *(loss.shown(digits) if loss else "" for loss in losses), *extra, f"{seconds:.0f}"]
        at_told = loss_of(here)
        rows.append((at_told.mean if at_told else float("inf"), f"| {' | '.join(row)} |"))
    whole = [_mean(cells, "nll_full", 3), _mean(cells, "ece_full", 3)]
    head = [f"{unit} lost at {amount:.0%} of MACs" for amount in amounts]
    at = f"at {told:.0%}"
    head += [f"log-loss {at} (whole: {whole[0]})", f"calibration error {at} (whole: {whole[1]})", f"times as fast {at}"]
    lines = [f"| way | {' | '.join(head)} | seconds |", "|---|" + "---:|" * (len(head) + 1)]
    return [*lines, *(row for _, row in sorted(rows, key=lambda pair: pair[0]))]


def _others(cells: Sequence[Cell]) -> list[str]:
    digits = 3 if in_nats(cells[0]) else 2
    lines = [
        f"| way | asked | {'nats' if digits == 3 else 'points'} lost | MACs left | times as fast | the whole model "
        "against itself | models |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for way in _ways(cells):
        for amount in _amounts([c for c in cells if (c["method"], c["asked_recover"]) == way]):
            here = _of(cells, way, amount)
            loss = loss_of(here)
            assert loss is not None, "amounts are those of cells"
            low = min(float(c["control_spread"][0]) for c in here)
            high = max(float(c["control_spread"][1]) for c in here)
            macs = statistics.mean(float(c["macs"]) for c in here)
            row = [_name(way), _asked(here[0]), loss.shown(digits), f"{macs:.1%}", _mean(here, "speedup", 2)]
            lines.append(f"| {' | '.join(row)} | {low:.2f} to {high:.2f} | {len(here)} |")
    return lines


def _asked(cell: Cell) -> str:
    amount = float(cell["amount"])
    return {
        "macs": f"{amount:.0%} of MACs", "speedup": f"{amount:g} times as fast",
        "prune": f"{amount:.0%} of heads gone", "whole": "–",
    }[str(cell["budget"])]  # fmt: skip


def _mean(cells: Sequence[Cell], name: str, digits: int) -> str:
    values = [float(c[name]) for c in cells if c.get(name) is not None]
    return f"{statistics.mean(values):.{digits}f}" if values else "–"
