"""What each paper draws, with plotly: heat map of heads, histogram, curve with band, scatter of two data sets."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headprune.budgets.curves import Curve
from headprune.errors import MissingExtraError, UnknownNameError
from headprune.files import write_text
from headprune.heads import HeadMap
from headprune.lab.analysis.pictures_static import write_image
from headprune.registry import hint

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

BLUE, RED, GREY = "#4269d0", "#d0424d", "#9aa0a6"
COLORS = (BLUE, RED, "#3ca951", "#ff8ab7", GREY)


def heat_map(heads: HeadMap, values: Mapping[str, Sequence[float | None]], *, title: str, name: str) -> Figure:
    """One row a site, one column a head; removed heads are blank. Values on hover."""
    go = _plotly()
    width = max((site.original_num_heads for site in heads), default=0)
    blank: dict[str, Sequence[float | None]] = {site.id: [None] * site.original_num_heads for site in heads}
    shown = {**blank, **values}  # a site without heads has no values
    rows = [list(shown[site.id]) + [None] * (width - site.original_num_heads) for site in heads]
    figure = go.Figure(
        go.Heatmap(
            z=rows, x=list(range(width)), y=[site.id for site in heads], colorscale="Viridis", colorbar={"title": name},
            hovertemplate="%{y}:%{x}<br>" + name + " %{z:.4g}<extra></extra>", xgap=1, ygap=1,
        )
    )  # fmt: skip
    return _styled(figure, title, "head", "site", reverse=True)


def histogram(values: Sequence[float], *, title: str, name: str, reference: float | None = None) -> Figure:
    """How many heads have which score (Michel et al., Figure 1)."""
    go = _plotly()
    figure = go.Figure(go.Histogram(x=list(values), marker_color=BLUE, nbinsx=30))
    if reference is not None:
        figure.add_vline(x=reference, line_dash="dash", line_color=RED, annotation_text="no head masked")
    return _styled(figure, title, name, "heads")


def curve_picture(curves: Mapping[str, Sequence[Curve]], *, title: str) -> Figure:
    """Score against share pruned; several runs under one name become a mean with a band from lowest to highest."""
    go = _plotly()
    figure = go.Figure()
    metric = ""
    for (name, runs), color in zip(curves.items(), itertools.cycle(COLORS), strict=False):
        shares = [100 * point.share for point in runs[0].points]
        scores = np.array([[point.score for point in run.points] for run in runs])
        metric = runs[0].metric
        if len(runs) > 1:
            figure.add_trace(go.Scatter(
                x=[*shares, *shares[::-1]], y=[*scores.max(0), *scores.min(0)[::-1]], fill="toself", mode="lines",
                fillcolor=color, opacity=0.2, line_width=0, hoverinfo="skip", showlegend=False,
            ))  # fmt: skip
        label = f"{name} ({len(runs)} seeds)" if len(runs) > 1 else name
        figure.add_trace(go.Scatter(
            x=shares, y=scores.mean(0), mode="lines+markers", name=label, line_color=color,
            hovertemplate="%{x:.0f} % pruned<br>" + metric + " %{y:.4f}<extra>" + label + "</extra>",
        ))  # fmt: skip
    return _styled(figure, title, "heads pruned (%)", metric)


def line_picture(
    series: Mapping[str, tuple[Sequence[float], Sequence[float]]], *, title: str, x: str, y: str
) -> Figure:
    """Several lines over one axis, such as retained heads against lambda."""
    go = _plotly()
    figure = go.Figure()
    for (name, (xs, ys)), color in zip(series.items(), itertools.cycle(COLORS), strict=False):
        figure.add_trace(go.Scatter(
            x=list(xs), y=list(ys), mode="lines+markers", name=name, line_color=color,
            hovertemplate="%{x}<br>%{y:.4g}<extra>" + name + "</extra>",
        ))  # fmt: skip
    return _styled(figure, title, x, y)


def scatter(
    first: Sequence[float], second: Sequence[float], names: Sequence[str], *, title: str, x: str, y: str
) -> Figure:
    """The same heads on two data sets (Michel et al., Figure 2)."""
    go = _plotly()
    figure = go.Figure(
        go.Scatter(
            x=list(first), y=list(second), text=list(names), mode="markers", marker_color=BLUE,
            hovertemplate="%{text}<br>%{x:.4f}, %{y:.4f}<extra></extra>",
        )
    )  # fmt: skip
    return _styled(figure, title, x, y)


def write_picture(figure: Figure, path: Path, kind: str = "html") -> Path:
    """A small HTML file (plotly's script lies beside it, so that it opens without a network), or a PNG or SVG."""
    path = path.with_name(f"{path.name}.{kind}")
    if kind in ("png", "svg"):
        return write_image(figure, path)
    if kind != "html":
        raise UnknownNameError(f"No kind of picture called '{kind}'. {hint(kind, ('html', 'png', 'svg'))}")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.write_html(str(path), include_plotlyjs="directory", full_html=True)
    return path


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><script src="plotly.min.js"></script>
<style>body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }}
th {{ text-align: left; padding-right: 2rem; vertical-align: top }}</style></head>
<body><h1>{title}</h1><table>{rows}</table>{figures}</body></html>
"""


def write_page(figures: Sequence[Figure], path: Path, *, title: str, facts: Sequence[tuple[str, str]] = ()) -> Path:
    """Several pictures and a table of facts on one page; plotly's script lies beside it."""
    from plotly.offline import get_plotlyjs

    rows = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in facts)
    parts = "".join(figure.to_html(full_html=False, include_plotlyjs=False) for figure in figures)
    write_text(path, _PAGE.format(title=escape(title), rows=rows, figures=parts))
    write_text(path.with_name("plotly.min.js"), get_plotlyjs())
    return path


def _styled(figure: Figure, title: str, x: str, y: str, *, reverse: bool = False) -> Figure:
    figure.update_layout(template="plotly_white", title=title, xaxis_title=x, yaxis_title=y, legend_title=None)
    if reverse:
        figure.update_yaxes(autorange="reversed")
    return figure


def _plotly() -> Any:
    try:
        import plotly.graph_objects
    except ImportError as error:
        raise MissingExtraError("Pictures need plotly: pip install 'headprune[report]'.") from error
    return plotly.graph_objects
