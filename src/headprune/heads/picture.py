"""A small picture of which heads a model has: one row a site, one square a head."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from headprune.heads.headmap import HeadMap
from headprune.heads.mask import HeadMask

SIZE = 16


COLUMNS = 80  # of a terminal
BAR = 24  # squares that stand for all neurons of a site


def head_text(heads: HeadMap, mask: HeadMask | None = None) -> str:
    """■ is a head, · a removed one (with a mask, one that it removes). Neurons are a bar, and how many are left."""
    width = max((len(site.id) for site in heads), default=0)
    room = (COLUMNS - width - 2 + 1) // 2
    rows = []
    for site in heads:
        kept = set(site.kept if mask is None else mask.kept(site.id))
        if site.is_neurons:
            left, total = len(kept), site.original_num_heads
            full = min(BAR, -(-BAR * left // max(1, total)))
            shown = ["■" * full + "·" * (BAR - full) + f"  {left:,} of {total:,}"]
        else:
            marks = ["■" if head in kept else "·" for head in range(site.original_num_heads)]
            shown = [" ".join(marks[start : start + room]) for start in range(0, max(1, len(marks)), room)]
        rows += [f"{(site.id if not place else '').ljust(width)}  {line}" for place, line in enumerate(shown)]
    return "\n".join(rows)


def boxed(lines: Sequence[str]) -> str:
    """Lines in a frame, for the end of a long command."""
    width = max(map(len, lines), default=0)
    inside = [f"│ {line.ljust(width)} │" for line in lines]
    return "\n".join([f"╭{'─' * (width + 2)}╮", *inside, f"╰{'─' * (width + 2)}╯"])


def head_picture(heads: HeadMap) -> str:
    """The same as SVG, with the head's name on hover."""
    label = 8 * max((len(site.id) for site in heads), default=0) + 12
    columns = max((site.original_num_heads for site in heads), default=0)
    width, height = label + columns * SIZE + 8, len(heads.sites) * SIZE + 8
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="monospace" font-size="12" role="img">',
        f"<title>{len(heads)} attention heads</title>",
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for row, site in enumerate(heads):
        y = 4 + row * SIZE
        parts.append(f'<text x="4" y="{y + 12}">{escape(site.id)}</text>')
        for head in range(site.original_num_heads):
            kept = head in site.kept
            fill = "#4269d0" if kept else "#e6e6e6"
            state = "" if kept else " (removed)"
            parts.append(
                f'<rect x="{label + head * SIZE}" y="{y}" width="{SIZE - 2}" height="{SIZE - 2}" fill="{fill}">'
                f"<title>{escape(site.id)}:{head}{state}</title></rect>"
            )
    return "\n".join([*parts, "</svg>\n"])
