"""A report as one self-contained HTML page."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from headprune.errors import MissingExtraError
from headprune.files import writable
from headprune.lab.analysis.pictures import COLORS
from headprune.lab.report import tables
from headprune.lab.report.gather import Report
from headprune.lab.report.lines import Chart
from headprune.lab.report.subjects import Cells, Subject, component_of
from headprune.tasks.metrics import metric_called

MOST_MODELS = 300  # on the map: more would make a page that is slow to open


def html_page(report: Report) -> str:
    """Everything is inside: style, script, plotly and the numbers. Text from files is escaped, never markup."""
    try:
        import jinja2
        from markupsafe import Markup
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise MissingExtraError("A report needs jinja2 and plotly: pip install 'headprune[report]'.") from error
    loader = jinja2.PackageLoader("headprune.lab.report", "page")
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.globals["tables"] = tables
    figures = [_figure(chart) for chart in report.charts]
    mapped = report.subjects[:MOST_MODELS]
    scripts = [*([get_plotlyjs()] if figures else []), _file("page.js")]
    made = environment.get_template("page.html.j2").render(
        report=report,
        style=Markup(_file("page.css")),
        scripts=[Markup(script) for script in scripts],
        hashes=[_hash(script) for script in scripts],
        figures=Markup(_inside(figures)),
        mapped=mapped,
        described=tables.MOST_DESCRIBED,
        subjects=Markup(_inside([_subject(subject) for subject in mapped])),
    )
    return writable(made)


def _file(name: str) -> str:
    return (resources.files("headprune.lab.report") / "page" / name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    """By which the page's policy knows a script of ours: no other is run, whatever text a file brings in."""
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"


def _inside(value: object) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(_short(value), separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _short(value: object) -> Any:
    """Numbers as a reader sees them: four digits. What is no number (nan, inf) is nothing."""
    if isinstance(value, Mapping):
        return {name: _short(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_short(inner) for inner in value]
    if isinstance(value, float):
        return float(f"{value:.4g}") if abs(value) < float("inf") else None
    return value


def _figure(chart: Chart) -> dict[str, Any]:
    """Means with markers, and a band for each line that has more than one value at a point."""
    import plotly.graph_objects as go

    figure = go.Figure()
    dashes = itertools.cycle(("solid", "dash", "dot", "dashdot"))
    for line, color, dash in zip(chart.lines, itertools.cycle(COLORS), dashes, strict=False):
        xs = [100 * point.share for point in line.points]
        bands = [point.band for point in line.points]
        if any(low < high for low, high in bands):
            figure.add_trace(go.Scatter(
                x=[*xs, *xs[::-1]], y=[*(high for _, high in bands), *(low for low, _ in reversed(bands))],
                fill="toself", mode="lines", fillcolor=color, opacity=0.2, line={"width": 0}, hoverinfo="skip",
                showlegend=False,
            ))  # fmt: skip
        figure.add_trace(go.Scatter(
            x=xs, y=[point.mean for point in line.points], mode="lines+markers", name=_text(line.name),
            line={"color": color, "dash": dash},
            hovertemplate="%{x:.1f} % pruned<br>%{y:.4f}<extra>%{fullData.name}</extra>",
        ))  # fmt: skip
    pruned = f"{tables.pruned(chart)} pruned (%)"
    figure.update_layout(template=None, xaxis_title=pruned, yaxis_title=_text(chart.metric))
    drawn = figure.to_dict()
    return {"data": [dict(trace) for trace in drawn["data"]], "layout": drawn["layout"]}


def _text(text: str) -> str:
    """Plotly reads a little markup in names: text from files is not to be any."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _subject(subject: Subject) -> dict[str, Any]:
    sites = [site for site, _ in subject.sorted_sites()]
    index = {site: place for place, site in enumerate(sites)}

    def cells(values: Cells | None) -> list[list[Any]] | None:
        if values is None or all(value is None for row in values.values() for value in row):
            return None
        return [list(values.get(site, [None] * subject.sites[site])) for site in sites]

    rankings = []
    for ranking in subject.rankings:
        curve = subject.curve_of(ranking)
        rankings.append({
            "name": ranking.name, "values": cells(ranking.values), "errors": cells(ranking.errors),
            "order": [[index[head.site], head.index] for head in ranking.order],
            "curve": None if curve is None else curve.points, "metric": "" if curve is None else curve.metric,
            "larger": True if curve is None else metric_called(curve.metric).larger_is_better,
        })  # fmt: skip
    return {
        "name": subject.name,
        "sites": [{"id": site, "component": component_of(site), "heads": subject.sites[site]} for site in sites],
        "rankings": rankings,
        "effects": [{"name": e.name, "change": cells(e.change), "p": cells(e.p)} for e in subject.effects],
        "functions": cells(subject.functions),
        "states": [{"name": name, "kept": _marks(subject, sites, kept)} for name, kept in subject.kept.items()],
    }


def _marks(subject: Subject, sites: Sequence[str], kept: Mapping[str, Sequence[int]]) -> list[list[int]]:
    """1 where a head is left; a site that is not named keeps all."""
    found = []
    for site in sites:
        every = range(subject.sites[site])
        left = set(kept.get(site, every))
        found.append([int(head in left) for head in every])
    return found
