"""Small charts as SVG text, the same on every machine: panels with lines, dots and bars. For paper_figures.py."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal
from xml.sax.saxutils import escape

WIDE, HIGH, LEFT, TOP, BOTTOM, LEGEND = 330, 250, 52, 30, 44, 16
Place = Callable[[float, float], tuple[float, float]]
COLOURS = ("#3366aa", "#cc4433", "#dd9911", "#228866", "#8855aa", "#777777", "#aa7744", "#44aacc")


@dataclass(frozen=True)
class Series:
    """Points of one kind. The paper's are hollow."""

    name: str
    points: Sequence[tuple[float, float]]
    kind: Literal["line", "dots", "bars"] = "line"
    is_paper: bool = False


@dataclass(frozen=True)
class Panel:
    """One chart; a dashed line at a base."""

    title: str
    x: str
    y: str
    series: Sequence[Series]
    base: float | None = None  # on the axis of values: of x for bars, of y otherwise


def row(panels: Sequence[Panel]) -> str:
    """The panels beside each other, three in a row at most; empty text if none has a point."""
    panels = [panel for panel in panels if any(series.points for series in panel.series)]
    if not panels:
        return ""
    across = min(3, len(panels))
    down = -(-len(panels) // across)
    tall = HIGH + 6 + LEGEND * max(len(panel.series) for panel in panels)
    wide, high = across * WIDE, down * tall
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" width="{wide}" height="{high}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{wide}" height="{high}" fill="#ffffff"/>',
    ]
    for place, panel in enumerate(panels):
        parts.append(f'<g transform="translate({place % across * WIDE} {place // across * tall})">')
        parts += [*_drawn(panel), "</g>"]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _drawn(panel: Panel) -> list[str]:
    points = [point for series in panel.series for point in series.points]
    bars = any(series.kind == "bars" for series in panel.series)
    xs = [x for x, _ in points] + ([panel.base] if bars and panel.base is not None else [])
    ys = [y for _, y in points] + ([0.0] if bars else [] if panel.base is None else [panel.base])
    left, right = _room(xs, 0.04)
    low, high = (0.0, max(ys) * 1.08) if bars else _room(ys, 0.06)

    def at(x: float, y: float) -> tuple[float, float]:
        across = LEFT + (x - left) / (right - left) * (WIDE - LEFT - 14)
        return round(across, 1), round(HIGH - BOTTOM - (y - low) / (high - low) * (HIGH - BOTTOM - TOP), 1)

    parts = [f'<text x="{WIDE / 2}" y="16" text-anchor="middle" font-weight="bold">{escape(panel.title)}</text>']
    bottom = HIGH - BOTTOM
    parts.append(f'<path d="M{LEFT} {TOP}V{bottom}H{WIDE - 14}" fill="none" stroke="#444"/>')
    for x in _ticks(left, right):
        parts.append(f'<text x="{at(x, low)[0]}" y="{bottom + 14}" text-anchor="middle">{x:g}</text>')
    for y in _ticks(low, high):
        parts.append(f'<text x="{LEFT - 4}" y="{at(left, y)[1] + 4}" text-anchor="end">{y:g}</text>')
    parts.append(f'<text x="{WIDE / 2}" y="{bottom + 30}" text-anchor="middle">{escape(panel.x)}</text>')
    middle = (TOP + bottom) / 2
    turned = f'transform="rotate(-90 12 {middle})"'
    parts.append(f'<text x="12" y="{middle}" text-anchor="middle" {turned}>{escape(panel.y)}</text>')
    if panel.base is not None:
        x, y = at(panel.base, low) if bars else at(left, panel.base)
        path = f"M{x} {TOP}V{bottom}" if bars else f"M{LEFT} {y}H{WIDE - 14}"
        parts.append(f'<path d="{path}" stroke="#999" stroke-dasharray="4 3"/>')
    for number, series in enumerate(panel.series):
        colour = COLOURS[number % len(COLOURS)]
        parts += _marks(series, colour, at, len(panel.series), number)
        y = HIGH + 6 + LEGEND * number
        fill = "#ffffff" if series.is_paper else colour
        parts.append(f'<circle cx="{LEFT}" cy="{y - 4}" r="3.5" fill="{fill}" stroke="{colour}"/>')
        parts.append(f'<text x="{LEFT + 9}" y="{y}">{escape(series.name)}</text>')
    return parts


def _marks(series: Series, colour: str, at: Place, many: int, number: int) -> list[str]:
    parts = []
    if series.kind == "bars":
        places = sorted({x for x, _ in series.points})
        gap = min((b - a for a, b in itertools.pairwise(places)), default=1.0)
        wide = max(1.5, (at(gap, 0)[0] - at(0, 0)[0]) * 0.8 / many)
        for x, y in series.points:
            across, top = at(x, y)
            across += (number - (many - 1) / 2) * wide
            parts.append(
                f'<rect x="{across - wide / 2:.1f}" y="{top}" width="{wide:.1f}" '
                f'height="{at(x, 0)[1] - top:.1f}" fill="{colour}"/>'
            )
        return parts
    if series.kind == "line" and len(series.points) > 1:
        path = "L".join(f"{x} {y}" for x, y in (at(*point) for point in series.points))
        dashed = ' stroke-dasharray="5 3"' if series.is_paper else ""
        parts.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="1.6"{dashed}/>')
    if series.kind == "dots" or len(series.points) < 40:
        fill = "#ffffff" if series.is_paper else colour
        parts += [
            f'<circle cx="{x}" cy="{y}" r="3" fill="{fill}" stroke="{colour}"/>'
            for x, y in (at(*p) for p in series.points)
        ]
    return parts


def _room(values: Sequence[float], more: float) -> tuple[float, float]:
    low, high = min(values), max(values)
    extra = (high - low) * more or abs(high) * more or 1.0
    return low - extra, high + extra


def _ticks(low: float, high: float) -> list[float]:
    rough = (high - low) / 5
    size = 10 ** math.floor(math.log10(rough))
    step = next(size * times for times in (1, 2, 5, 10) if size * times >= rough)
    first = math.ceil(low / step)
    return [round(step * place, 10) for place in range(first, math.floor(high / step) + 1)]
