"""A small picture of which heads a model has: one row a site, one square a head."""

from __future__ import annotations

from html import escape

from headprune.heads.headmap import HeadMap

SIZE = 16


def head_text(heads: HeadMap) -> str:
    """■ is a head, · a removed one."""
    width = max((len(site.id) for site in heads), default=0)
    rows = []
    for site in heads:
        squares = " ".join("■" if head in site.kept else "·" for head in range(site.original_num_heads))
        rows.append(f"{site.id.ljust(width)}  {squares}")
    return "\n".join(rows)


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
