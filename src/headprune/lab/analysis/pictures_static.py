"""The same pictures as PNG or SVG, through matplotlib: for papers and slides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from headprune.errors import MissingExtraError


def write_image(figure: Any, path: Path) -> Path:
    """Draw a figure of `pictures` with matplotlib; the kind is that of the path (.png, .svg, .pdf)."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("PNG and SVG need matplotlib: pip install 'headprune[report]'.") from error
    image = Figure(figsize=(8, 5), layout="constrained")
    axes = image.subplots()
    for trace in figure.data:
        _DRAW[trace.type](axes, trace)
    layout = figure.layout
    axes.set(title=layout.title.text, xlabel=layout.xaxis.title.text, ylabel=layout.yaxis.title.text)
    for line in layout.shapes:
        axes.axvline(line.x0, linestyle="--", color=line.line.color)
    if sum(1 for trace in figure.data if trace.name) > 1:
        axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context({"svg.hashsalt": "headprune"}):  # the same picture is the same file
        image.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
    return path


def _heat_map(axes: Any, trace: Any) -> None:
    values = np.array([[np.nan if value is None else value for value in row] for row in trace.z], dtype=float)
    drawn = axes.imshow(values, cmap="viridis", aspect="auto")
    axes.set_yticks(range(len(trace.y)), list(trace.y))
    axes.set_xticks(range(len(trace.x)), list(trace.x))
    axes.figure.colorbar(drawn, label=trace.colorbar.title.text)


def _histogram(axes: Any, trace: Any) -> None:
    axes.hist(list(trace.x), bins=trace.nbinsx, color=trace.marker.color)


def _scatter(axes: Any, trace: Any) -> None:
    x, y = np.asarray(trace.x, dtype=float), np.asarray(trace.y, dtype=float)
    if trace.fill == "toself":
        axes.fill(x, y, color=trace.fillcolor, alpha=trace.opacity, linewidth=0)
    elif trace.mode == "markers":
        axes.plot(x, y, "o", color=trace.marker.color)
    else:
        axes.plot(x, y, "o-", color=trace.line.color, label=trace.name)


_DRAW = {"heatmap": _heat_map, "histogram": _histogram, "scatter": _scatter}
