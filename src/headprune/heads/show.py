"""How values show themselves in a notebook: a small map as SVG, a table as HTML, a frame of pandas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from headprune.errors import MissingExtraError
from headprune.files import write_text

CELL, GAP, TOP = 18, 3, 26
LOW, HIGH = (226, 233, 247), (31, 79, 196)  # worth least, worth most
Row = Sequence[float | None]


@dataclass(frozen=True)
class Picture:
    """An SVG that notebooks show."""

    svg: str

    def _repr_svg_(self) -> str:
        return self.svg

    def save(self, path: str | Path) -> Path:
        """Write it; the name should end in .svg."""
        return write_text(path, self.svg + "\n")


def neuron_sites(sites: Iterable[str]) -> list[str]:
    """Those whose heads are neurons."""
    return [site for site in sites if ".neurons." in f".{site}."]


def head_cells(
    rows: Mapping[str, Row],
    kept: Mapping[str, Sequence[int]] | None = None,
    *,
    title: str = "",
    neurons: Sequence[str] = (),
) -> Picture:
    """A row a site, a cell a head: the darker, the larger its number; dashed where it is gone. Neurons are a bar."""
    heads = {site: row for site, row in rows.items() if site not in neurons}
    numbers = [value for row in heads.values() for value in row if value is not None]
    low, high = (min(numbers), max(numbers)) if numbers else (0.0, 1.0)
    label = 8 + 7 * max((len(site) for site in rows), default=0)
    width = label + max([12 * (CELL + GAP), *(len(row) * (CELL + GAP) for row in heads.values())]) + 105
    parts = [f'<text x="0" y="15" font-weight="600" fill="#1b1e23">{escape(title)}</text>']
    for place, (site, row) in enumerate(rows.items()):
        y = TOP + place * (CELL + GAP)
        parts.append(f'<text x="0" y="{y + 13}" fill="#555b66">{escape(site)}</text>')
        left = set(range(len(row)) if kept is None else kept.get(site, ()))
        if site in neurons:
            parts.append(_bar(label, y, len(left), len(row)))
            continue
        for head, value in enumerate(row):
            gone = head not in left or (value is None and kept is None)
            part = 1.0 if value is None or high == low else (value - low) / (high - low)
            parts.append(_cell(label + head * (CELL + GAP), y, f"{site}:{head}", value, None if gone else part))
    tall = TOP + len(rows) * (CELL + GAP) + 4
    return Picture(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {tall}" width="{width}" height="{tall}" '
        f'font-family="system-ui, sans-serif" font-size="12" role="img" aria-label="{escape(title)}">'
        f'<rect width="{width}" height="{tall}" fill="#fff"/>{"".join(parts)}</svg>'
    )


def _cell(x: int, y: int, name: str, value: float | None, part: float | None) -> str:
    told = name if value is None else f"{name}: {value:.4g}"
    if part is None:
        look = 'fill="none" stroke="#555b66" stroke-dasharray="3 2"'
        place = f'x="{x + 0.5}" y="{y + 0.5}" width="{CELL - 1}" height="{CELL - 1}"'
        return f'<rect {place} rx="3" {look}><title>{escape(told)}, removed</title></rect>'
    color = ",".join(str(round(a + (b - a) * part)) for a, b in zip(LOW, HIGH, strict=True))
    place = f'x="{x}" y="{y}" width="{CELL}" height="{CELL}"'
    return f'<rect {place} rx="3" fill="rgb({color})"><title>{escape(told)}</title></rect>'


def _bar(x: int, y: int, left: int, total: int) -> str:
    full = 12 * (CELL + GAP) - GAP
    part = full * left / max(1, total)
    return (
        f'<rect x="{x + 0.5}" y="{y + 2.5}" width="{full - 1}" height="{CELL - 5}" rx="3" fill="none" stroke="#555b66" '
        f'stroke-dasharray="3 2"/><rect x="{x}" y="{y + 2}" width="{part:.1f}" height="{CELL - 4}" rx="3" '
        f'fill="rgb{HIGH}"/><text x="{x + full + 8}" y="{y + 13}" fill="#1b1e23">{left:,} of {total:,}</text>'
    )


def table(rows: Sequence[Sequence[object]], columns: Sequence[str], caption: str = "") -> str:
    """A plain HTML table."""
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def frame(rows: Sequence[Mapping[str, object]]) -> Any:
    """A frame of pandas."""
    try:
        import pandas
    except ImportError as error:
        raise MissingExtraError("A frame needs pandas: pip install 'headprune[tasks]'.") from error
    return pandas.DataFrame(list(rows))
