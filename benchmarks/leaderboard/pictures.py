"""Pictures of the board by cost: what is lost against the MACs that are left, one line a way."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT = 720, 400
LEFT, RIGHT, TOP, BOTTOM = 60, 190, 30, 50
COLOURS = ("#1b6ca8", "#c8553d", "#588157", "#8e6c8a", "#b08900", "#3c3c3c", "#2a9d8f", "#9d4edd", "#6c757d", "#d4a373")
Line = Sequence[tuple[float, float]]  # share of MACs left, what is lost


def picture(title: str, unit: str, lines: Mapping[str, Line]) -> str:
    """An SVG whose text readers of the page can read, too."""
    highest = max((loss for line in lines.values() for _, loss in line), default=1.0)
    lowest = min(0.0, *(loss for line in lines.values() for _, loss in line)) if lines else 0.0
    step = _step(highest - lowest)
    top, bottom = step * math.ceil(max(highest, step) / step), step * math.floor(lowest / step)

    def x(share: float) -> float:
        return LEFT + (1 - share) * (WIDTH - LEFT - RIGHT)

    def y(loss: float) -> float:
        return TOP + (top - loss) / (top - bottom) * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        f'font-size="12" role="img" aria-label="{escape(title)}">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="18" font-size="14">{escape(title)}</text>',
    ]
    for number in range(round((top - bottom) / step) + 1):
        loss = bottom + number * step
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(loss):.1f}" y2="{y(loss):.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y(loss) + 4:.1f}" text-anchor="end">{loss:g}</text>')
    for share in (1.0, 0.8, 0.6, 0.4, 0.3, 0.2, 0.1):
        parts.append(f'<text x="{x(share):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{share:.0%}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle:.0f}" y="{HEIGHT - 10}" text-anchor="middle">MACs left</text>')
    parts.append(f'<text x="14" y="{HEIGHT / 2:.0f}" transform="rotate(-90 14 {HEIGHT / 2:.0f})" '
                 f'text-anchor="middle">{escape(unit)} lost</text>')  # fmt: skip
    for number, (name, line) in enumerate(lines.items()):
        parts += _line(name, [(x(share), y(loss)) for share, loss in sorted(line, reverse=True)], number)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _line(name: str, points: Sequence[tuple[float, float]], number: int) -> list[str]:
    colour = COLOURS[number % len(COLOURS)]
    dashes = ' stroke-dasharray="5 3"' if number >= len(COLOURS) else ""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    key = TOP + 14 + 18 * number
    return [
        f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{3 if not number else 1.5}"{dashes}/>',
        *(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points),
        f'<line x1="{WIDTH - RIGHT + 10}" x2="{WIDTH - RIGHT + 32}" y1="{key}" y2="{key}" stroke="{colour}" '
        f'stroke-width="{3 if not number else 1.5}"{dashes}/>',
        f'<text x="{WIDTH - RIGHT + 38}" y="{key + 4}">{escape(name)}</text>',
    ]


def _step(span: float) -> float:
    """1, 2 or 5 of some power of ten, for about six lines."""
    rough = max(span, 1e-6) / 6
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
