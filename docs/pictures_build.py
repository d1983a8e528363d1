"""Pictures of the README and of the site, from stored figures: `make docs` writes docs/assets/*.svg."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from headprune.heads.show import Picture, head_cells

HERE = Path(__file__).parent
FIGURES = HERE / "assets" / "demo.json"
BLUE, INK, QUIET = "#1f4fc4", "#1b1e23", "#555b66"


def stored() -> dict[str, Any]:
    """What a run of the demo with seed 0 left."""
    found: dict[str, Any] = json.loads(FIGURES.read_text())
    return found


def before_and_after(found: dict[str, Any]) -> str:
    """The map of heads by worth, whole and at the last budget, with neurons as bars."""
    first, last = found["budget"][0], found["budget"][-1]
    maps = [_map(found, point, title) for point, title in ((first, "before"), (last, f"after: {last['label']}"))]
    svg = [f'<svg x="{16 + place * 500}" y="12" {one.svg.removeprefix("<svg ")}' for place, one in enumerate(maps)]
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1000 316" width="1000" height="316" '
        'font-family="system-ui, sans-serif" role="img" aria-label="Heads and neurons of MiniLM before and after">'
        f'<rect width="1000" height="316" fill="#fff"/>{"".join(svg)}</svg>\n'
    )


def _map(found: dict[str, Any], point: dict[str, Any], title: str) -> Picture:
    values = found["worth"]["values"]
    neurons = [site["id"] for site in found["sites"] if site["is_neurons"]]
    rows = {site["id"]: values.get(site["id"], [None] * site["heads"]) for site in found["sites"]}
    kept = {
        site: range(int(marks)) if site in neurons else [head for head, mark in enumerate(marks) if mark == "1"]
        for site, marks in point["kept"].items()
    }
    accuracy = found["demo"]["accuracy"][point is not found["budget"][0]]
    told = f"{title}, {point['heads']} heads, accuracy {100 * accuracy:.1f} %"
    return head_cells(rows, kept, title=told, neurons=neurons)


def size_against_score(found: dict[str, Any]) -> str:
    """Accuracy against MACs left: heads masked by worth, and what shrink makes."""
    whole = found["budget"][0]["macs"]
    lines = {"heads alone, least worth first": found["curve"], "shrink: heads and neurons, repaired": found["budget"]}
    low, high = 0.45, 0.85  # a little below chance, a little above the whole model
    parts = []
    for step in range(5):
        y, score = 280 - 62.5 * step, low + (high - low) * step / 4
        parts.append(f'<line x1="60" x2="640" y1="{y}" y2="{y}" stroke="#d5d9e0"/>')
        parts.append(f'<text x="52" y="{y + 4}" text-anchor="end" fill="{QUIET}">{100 * score:.0f} %</text>')
    for left in (100, 80, 60, 40):
        parts.append(f'<text x="{_x(left / 100)}" y="300" text-anchor="middle" fill="{QUIET}">{left} %</text>')
    for number, (name, points) in enumerate(lines.items()):
        color, dash = (QUIET, "6 4") if number == 0 else (BLUE, "none")
        places = [(_x(point["macs"] / whole), 280 - 250 * (point["score"] - low) / (high - low)) for point in points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        look = f'fill="none" stroke="{color}" stroke-width="2" stroke-dasharray="{dash}"'
        parts.append(f'<polyline points="{path}" {look}/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{color}"/>' for x, y in places]
        parts.append(f'<text x="640" y="{20 + 18 * number}" text-anchor="end" fill="{color}">{name}</text>')
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 660 330" width="660" height="330" font-size="12" '
        'font-family="system-ui, sans-serif" role="img" aria-label="Accuracy against MACs left">'
        f'<rect width="660" height="330" fill="#fff"/>{"".join(parts)}'
        f'<text x="350" y="322" text-anchor="middle" fill="{INK}">MACs left</text></svg>\n'
    )


def _x(left: float) -> float:
    return 60 + 580 * (1 - left) / 0.7


def logo() -> str:
    """Nine heads, three of which are gone."""
    cells = ["1.1", "11.", ".11"]
    parts = [
        f'<rect x="{4 + 20 * x}" y="{4 + 20 * y}" width="16" height="16" rx="3" '
        + ('fill="#fff"/>' if mark == "1" else 'fill="none" stroke="#fff" stroke-dasharray="4 3"/>')
        for y, row in enumerate(cells) for x, mark in enumerate(row)
    ]  # fmt: skip
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 64 64">{"".join(parts)}</svg>\n'


def badge(name: str, value: str) -> str:
    """A small sign: what it is of, and what it says."""
    left, right = 7 * len(name) + 14, 7 * len(value) + 14
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" font-size="11" '
        f'font-family="system-ui, sans-serif" role="img" aria-label="{name}: {value}">'
        f'<rect width="{left}" height="20" fill="{INK}"/><rect x="{left}" width="{right}" height="20" fill="{BLUE}"/>'
        f'<text x="7" y="14" fill="#fff">{name}</text><text x="{left + 7}" y="14" fill="#fff">{value}</text></svg>\n'
    )


def badges() -> dict[str, str]:
    """What pyproject.toml says, so that they stay true."""
    project = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"]
    version = project["requires-python"].removeprefix(">=")
    return {"licence": badge("licence", project["license"]), "python": badge("Python", f"{version} or later")}


def pictures() -> dict[Path, str]:
    found, folder = stored(), HERE / "assets"
    return {
        folder / "before-after.svg": before_and_after(found),
        folder / "size-score.svg": size_against_score(found),
        folder / "logo.svg": logo(),
        **{folder / f"badge-{name}.svg": text for name, text in badges().items()},
    }


if __name__ == "__main__":
    for path, text in pictures().items():
        path.write_text(text)
