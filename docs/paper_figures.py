"""The papers' figures in their form, from stored trials, with the papers' points where they are printed."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from svg_panels import Panel, Series, row

from headprune.lab.experiments.presets import Preset
from headprune.lab.experiments.store import Record
from headprune.lab.experiments.values import number_at


def figure(preset: Preset, records: Sequence[Record]) -> str:
    """The picture of a preset that is a figure; empty if nothing of it is there to draw."""
    done = [record for record in records if record.is_done]
    return row(_DRAWN[preset.name](done)) if preset.name in _DRAWN else ""


def _step(records: Iterable[Record], name: str, **values: Any) -> list[Record]:
    return [
        one for one in records
        if one.trial.step == name and values.items() <= one.trial.params["values"].items()
    ]  # fmt: skip


def _mean(records: Sequence[Record], path: str) -> float | None:
    found = [number for record in records if isinstance(number := number_at(record.result, path), float)]
    return statistics.fmean(found) if found else None


def _seeds(records: Sequence[Record]) -> str:
    count = len({record.trial.seed for record in records})
    return f"{count} seed{'s' if count != 1 else ''}"


def _points(pairs: Iterable[tuple[float, float | None]]) -> list[tuple[float, float]]:
    return [(x, y) for x, y in pairs if y is not None]


# Michel et al.


def _histogram(records: list[Record], step: str, title: str, x: str) -> Panel:
    found = _step(records, step)
    scores = [row["score"] for record in found for row in record.result["heads"].values()]
    bases = [record.result["base"]["score"] for record in found]
    if not scores:
        return Panel(title, x, "heads", [])
    low, high = min(scores), max(scores)
    wide = (high - low) / 15 or 1.0
    bins = Counter(min(14, int((score - low) / wide)) for score in scores)
    points = [(low + (place + 0.5) * wide, bins[place] / len(found)) for place in range(15)]
    return Panel(
        title,
        x,
        "heads",
        [Series(f"here, {_seeds(found)}; dashed: all heads", points, "bars")],
        statistics.fmean(bases),
    )


def _michel_1(records: list[Record]) -> list[Panel]:
    return [
        _histogram(records, "translator-ablation", "(a) translation", "BLEU without a head"),
        _histogram(records, "classifier-ablation", "(b) SST-2", "accuracy without a head"),
    ]


def _michel_2(records: list[Record]) -> list[Panel]:
    panels = []
    for step, title, x, y, paper in (
        ("two-domains", "(a) translation", "BLEU, noisy captions", "BLEU, captions", 0.56),
        ("in-and-out", "(b) CoLA", "Matthews in domain", "Matthews out of domain", 0.68),
    ):  # fmt: skip
        found = _step(records, step)
        points = [
            (row["score"], one.result["against"]["scores"][head])
            for one in found for head, row in one.result["heads"].items()
        ]  # fmt: skip
        r = _mean(found, "against/pearson")
        told = "" if r is None else f", r = {r:.2f}"
        panels.append(Panel(title, x, y, [Series(f"here, {_seeds(found)}{told} (paper: r = {paper})", points, "dots")]))
    return panels


def _curves(records: list[Record], step: str, names: Mapping[str, str]) -> list[Series]:
    """The mean over seeds at every place of a pruning curve."""
    found, series = _step(records, step), []
    for key, name in names.items():
        at: dict[int, list[tuple[float, float]]] = defaultdict(list)
        for record in found:
            for line in record.result["curves"].get(key, ()):
                for place, point in enumerate(line["points"]):
                    at[place].append((100 * point["share"], point["score"]))
        means = [tuple(map(statistics.fmean, zip(*some, strict=True))) for _, some in sorted(at.items())]
        series.append(Series(f"{name} ({_seeds(found)})", means))
    return [one for one in series if one.points]


ORDERS = {"sensitivity": "sensitivity", "metric-ablation": "oracle (single ablations)", "random": "random"}


def _michel_3(records: list[Record]) -> list[Panel]:
    return [
        Panel("(a) translation", "% of heads pruned", "BLEU", _curves(records, "translator-curve", ORDERS)),
        Panel("(b) SST-2", "% of heads pruned", "accuracy", _curves(records, "classifier-curve", ORDERS)),
    ]


def _michel_4(records: list[Record]) -> list[Panel]:
    names = {f"{kind}, sensitivity": kind for kind in ("encoder", "cross", "decoder")}
    series = _curves(records, "curve", names)
    return [Panel("one kind of attention at a time", "% of its heads pruned", "BLEU", series)]


def _michel_5(records: list[Record]) -> list[Panel]:
    """Left: relative score by epoch, a line a share. Right: by share, the first and the last epochs."""
    found = _step(records, "dynamics")
    relative: dict[tuple[int, int], list[float]] = defaultdict(list)
    for record in found:
        for epoch, lines in enumerate(record.result["curves"].values(), 1):
            points = lines[0]["points"]
            for place, point in enumerate(points):
                if points[0]["score"]:
                    relative[epoch, place].append(100 * point["score"] / points[0]["score"])
    mean = {key: statistics.fmean(some) for key, some in relative.items()}
    epochs = sorted({epoch for epoch, _ in mean})
    left = [
        Series(f"{10 * place} % pruned", _points((epoch, mean.get((epoch, place))) for epoch in epochs))
        for place in (0, 2, 4, 6, 8)
    ]
    right = [
        Series(f"epoch {epoch}", _points((10 * place, mean.get((epoch, place))) for place in range(11)))
        for epoch in (*epochs[:2], *epochs[-2:])
    ]
    bleu = [
        (
            epoch,
            statistics.fmean(list(one.result["curves"].values())[epoch - 1][0]["points"][0]["score"] for one in found),
        )
        for epoch in epochs
    ]
    paper = [(1, 3.0), (2, 6.2), (3, 18.1), (5, 26.9), (10, 30.6), (20, 34.5), (30, 34.7), (40, 34.9)]
    return [
        Panel("by epoch", "epoch", "% of the unpruned BLEU", left if found else []),
        Panel("first and last epochs", "% of heads pruned", "% of the unpruned BLEU", right if found else []),
        Panel("without pruning", "epoch", "BLEU",
              [Series(f"here, {_seeds(found)}", bleu), Series("paper (IWSLT)", paper, is_paper=True)]),
    ]  # fmt: skip


def _michel_6(records: list[Record]) -> list[Panel]:
    wanted = (("sst2", "(a) SST-2", "accuracy"), ("cola", "(b) CoLA", "Matthews"), ("mrpc", "(c) MRPC", "F1"),
              ("translator", "(d) translation", "BLEU"))  # fmt: skip
    only = {"sensitivity": "sensitivity"}
    return [Panel(title, "% of heads pruned", y, _curves(records, f"{step}-curve", only)) for step, title, y in wanted]


# Voita et al.


def _voita_6(records: list[Record]) -> list[Panel]:
    found = records[0].result["log_alpha"]
    first = found["0.0"]
    left = [
        Series("Concrete", list(zip(first["points"], first["concrete"], strict=True))),
        Series(f"Hard Concrete, p(0) = {first['zero']:.2f}, p(1) = {first['one']:.2f}",
               list(zip(first["points"], first["density"], strict=True))),
    ]  # fmt: skip
    right = [
        Series(
            f"p(0) = {one['zero']:.2f}, p(1) = {one['one']:.2f}", list(zip(one["points"], one["density"], strict=True))
        )
        for one in found.values()
    ]
    return [Panel("(a)", "value", "density", left), Panel("(b)", "value", "density", right)]


def _voita_7(records: list[Record]) -> list[Panel]:
    panels = []
    for title, base, gates, ours, part, paper, top in (
        ("captions (paper: WMT)", "translator", "encoder-gates", "encoder-gates-ours", "test_2016_flickr",
         [(48, 29.6), (10, 29.5), (5, 29.0), (2, 28.25)], 29.6),
        ("help (paper: subtitles)", "helper", "help-encoder-gates", "", "test",
         [(48, 32.4), (9, 32.15), (4, 32.15), (1, 31.7)], 32.4),
    ):  # fmt: skip
        whole = _mean(_step(records, base), f"{part}/score")
        series = []
        for step, name in ((gates, "λ, the paper's gates"), (ours, "a target, our gates")):
            found = _step(records, step) if step else []
            points = [
                (100 * one["components"]["encoder"] / 24, one["tests"][part]["score"] - whole)
                for one in (record.result["results"][0] for record in found) if whole is not None
            ]  # fmt: skip
            series.append(Series(f"{name}, {_seeds(found)}", sorted(points), "dots"))
        series.append(Series("paper", [(100 * heads / 48, score - top) for heads, score in paper], is_paper=True))
        panels.append(
            Panel(
                title,
                "% of encoder heads retained",
                "BLEU minus the whole model's",
                [one for one in series if one.points],
                0.0,
            )
        )
    return panels


def _voita_8(records: list[Record]) -> list[Panel]:
    models = [("all", _step(records, "functions-of-all"))]
    models += [(f"λ {weight}", _step(records, "functions-of-rest", weight=weight)) for weight in (0.002, 0.006, 0.02)]
    kinds = ("positional", "syntactic", "rare", "other")
    series = [
        Series(
            kind, _points((place, _mean(found, f"counts/{kind}")) for place, (_, found) in enumerate(models)), "bars"
        )
        for kind in kinds
    ]
    named = ", ".join(f"{place}: {name}" for place, (name, _) in enumerate(models))
    return [Panel("functions of encoder heads", named, "heads", [one for one in series if one.points])]


PAPER_COUNTS = {
    "all-gates": [(75, (14, 31, 30)), (58, (12, 21, 25)), (36, (8, 13, 15)), (26, (5, 9, 12))],
    "help-gates": [(104, (27, 31, 46)), (61, (13, 17, 31)), (28, (6, 9, 13))],
}


def _voita_9(records: list[Record]) -> list[Panel]:
    panels = []
    for step, title in (("all-gates", "captions (paper: WMT)"), ("help-gates", "help (paper: subtitles)")):
        series = []
        for place, kind in enumerate(("encoder", "decoder", "cross")):
            found = [one.result["results"][0] for one in _step(records, step)]
            points = [(100 - 100 * one["heads"][1] / 72, 100 * one["components"][kind] / 24) for one in found]
            series.append(Series(f"{kind}, {_seeds(_step(records, step))}", sorted(points), "dots"))
            paper = [(100 - 100 * kept / 144, 100 * counts[place] / 48) for kept, counts in PAPER_COUNTS[step]]
            series.append(Series(f"{kind}, paper (Table 2)", sorted(paper), is_paper=True))
        panels.append(Panel(title, "% of heads pruned", "% of this kind active", [one for one in series if one.points]))
    return panels


def _voita_10(records: list[Record]) -> list[Panel]:
    panels = []
    for kind, title in (("decoder", "decoder self-attention"), ("cross", "decoder-encoder attention")):
        found = [one.result["results"][0] for one in _step(records, "all-gates")]
        series = [
            Series(f"layer {layer + 1} of 3",
                   sorted((24 - one["components"][kind], one["open"][f"{kind}.{layer}"]) for one in found), "dots")
            for layer in range(3)
        ]  # fmt: skip
        panels.append(Panel(title, "heads of this kind pruned", "active heads", [one for one in series if one.points]))
    return panels


# Budhraja et al.


def _budhraja_1(records: list[Record]) -> list[Panel]:
    cuts = {"18/18/18": 25, "12/12/12": 50, "10/10/10": 58, "6/6/6": 75, "one": 87.5}
    whole = _mean(_step(records, "translator"), "test_2016_flickr/score")
    tuned = [
        (share, _gap(_mean(_step(records, "tuned", pattern=cut), "test_2016_flickr/score"), whole))
        for cut, share in cuts.items()
    ]
    paper = [
        (0, 0.0),
        (25, 0.50),
        (35, 0.20),
        (50, 0.29),
        (55, -0.09),
        (60, -0.15),
        (75, -0.87),
        (81, -1.12),
        (87, -1.62),
    ]
    base = _mean(_step(records, "classifier"), "dev/score")
    shares = [
        (share, _gap(_mean(_step(records, "tuned-sst2", prune=f"{share}%"), "dev/score"), base, 100))
        for share in range(10, 100, 10)
    ]
    sst2 = [(0, 92.88), (10, 92.48), (20, 92.25), (30, 92.48), (40, 92.27), (50, 92.00), (60, 91.89), (70, 90.86),
            (80, 89.96), (90, 87.11)]  # fmt: skip
    panels = []
    for title, y, mine, theirs in (
        ("translation (paper: EN-RU)", "BLEU minus the whole model's", tuned, paper),
        ("SST-2", "points minus the whole model's", shares, [(x, value - 92.88) for x, value in sst2]),
    ):
        series = [Series("here", _points(mine)), Series("paper", theirs, is_paper=True)]
        panels.append(Panel(title, "% of heads pruned at random", y, [one for one in series if one.points], 0.0))
    return panels


def _gap(found: float | None, whole: float | None, times: float = 1) -> float | None:
    return None if found is None or whole is None else times * (found - whole)


def _budhraja_2(records: list[Record]) -> list[Panel]:
    """The mean change of every layer's heads that are left: as panels, because the paper prints colours alone."""
    panels = []
    cases = [("change", {"prune": cut}) for cut in ("10%", "50%", "90%")]
    cases += [("change-layers", {"pattern": cut}) for cut in ("top:3", "bottom:3", "even")]
    for letter, (step, where) in zip("abcdef", cases, strict=True):
        found = _step(records, step, **where)
        points = [
            (layer + 0.06 * (head - 5.5), 1000 * value)
            for one in found for layer, values in enumerate(one.result["overall"].values())
            for head, value in enumerate(values) if value is not None
        ]  # fmt: skip
        cut = next(iter(where.values()))
        panels.append(
            Panel(
                f"({letter}) {cut} pruned",
                "layer (a dot a head)",
                "mean change, thousandths",
                [Series(_seeds(found), points, "dots")],
            )
        )
    return panels


# Shim et al.


def _shim_1(records: list[Record]) -> list[Panel]:
    found = records[0].result
    shares = [name for name in found if name.endswith("%")]
    panels = []
    for title, key in (("(a) MACs", "macs"), ("(b) parameters", "parameters")):
        series = [
            Series(name, [(float(share[:-1]), 100 * found[share][model][key]) for share in shares])
            for name, model in (("Transformer-XL", "transformer-xl"), ("All-attention", "all-attention"))
        ]
        theirs = {"macs": 73, "parameters": 81}[key]
        series.append(Series("paper, at 50 %", [(50, theirs), (50, 50)], "dots", is_paper=True))
        panels.append(Panel(title, "% of heads pruned", "% left", series))
    return panels


def _shim_3(records: list[Record]) -> list[Panel]:
    per_layer = 5 * 192**2 + 2 * 256 * 192
    mine = [
        (6 * per_layer / 1e6 * one["heads"][1] / 36, one["tests"]["test"]["score"])
        for one in (record.result["results"][0] for record in _step(records, "gated"))
    ]  # fmt: skip
    rivals = [
        (6 * (5 * width**2 + 2 * inner * width) / 1e6, _mean(_step(records, "rival", width=width), "test/score"))
        for width, inner in ((192, 256), (144, 192))
    ]
    across = "millions of parameters in layers"
    paper = [(54.6, 23.24), (45.2, 23.45), (36.7, 24.07), (30.7, 24.85)]
    here = [
        Series(f"All-attention, pruned, {_seeds(_step(records, 'gated'))}", sorted(mine), "dots"),
        Series("Transformer-XL", _points(rivals)),
    ]
    return [
        Panel("here: letters", across, "bits per character", [one for one in here if one.points]),
        Panel("paper: WikiText-103 (Table 1)", across, "perplexity",
              [Series("All-attention, pruned", paper, is_paper=True)]),
    ]  # fmt: skip


_DRAWN: Mapping[str, Callable[[list[Record]], list[Panel]]] = {
    "michel-figure-1": _michel_1, "michel-figure-2": _michel_2, "michel-figure-3": _michel_3,
    "michel-figure-4": _michel_4, "michel-figure-5": _michel_5, "michel-figure-6": _michel_6,
    "voita-figure-6": _voita_6, "voita-figure-7": _voita_7, "voita-figure-8": _voita_8, "voita-figure-9": _voita_9,
    "voita-figure-10": _voita_10, "budhraja-figure-1": _budhraja_1, "budhraja-figure-2": _budhraja_2,
    "shim-figure-1": _shim_1, "shim-figure-3": _shim_3,
}  # fmt: skip
