"""The page: one file with its style, script and numbers, which asks nobody for anything."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from html import escape
from importlib import resources
from typing import Any

from headprune.files import writable
from headprune.lab.playground.content import Content

SCRIPTS = ("base.js", "map.js", "charts.js", "attention.js", "examples.js", "main.js")
LIVE = "live.js"


def page(content: Content) -> str:
    """A page of its own. Text from files is escaped, never markup; the policy knows the script by its hash."""
    return filled(content.title, content.about, content.to_dict())


def filled(title: str, about: str, content: Mapping[str, object], *, live: bool = False) -> str:
    """The template with everything in it. A live page may ask its own server, and nobody else."""
    program = script(live=live)
    parts = {
        "TITLE": escape(title), "ABOUT": escape(about), "STYLE": style(), "BODY": part("body.html"),
        "CONTENT": inside(content), "SCRIPT": program, "HASH": hash_of(program),
        "CONNECT": "'self'" if live else "'none'",
    }  # fmt: skip
    first, *rest = part("page.html").split("@")
    made = [first]
    for place, piece in enumerate(rest):
        made.append(parts[piece] if place % 2 == 0 else piece)
    return writable("".join(made))


def script(*, live: bool = False) -> str:
    files = (*SCRIPTS[:-1], LIVE, SCRIPTS[-1]) if live else SCRIPTS
    return '"use strict";\n(() => {\n' + "".join(map(part, files)) + "})();\n"


def style() -> str:
    return part("colors.css") + part("page.css") + part("play.css")


def part(name: str) -> str:
    """A file of the page."""
    return (resources.files("headprune.lab.playground") / "page" / name).read_text(encoding="utf-8")


def hash_of(program: str) -> str:
    """By which the page's policy knows a script of ours: no other is run, whatever text a file brings in."""
    return f"sha256-{base64.b64encode(hashlib.sha256(program.encode()).digest()).decode()}"


def inside(value: object) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(short(value), separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def short(value: object) -> Any:
    """Numbers as a reader sees them: four digits. What is no number (nan, inf) is nothing."""
    if isinstance(value, Mapping):
        return {name: short(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [short(inner) for inner in value]
    if isinstance(value, float):
        return float(f"{value:.4g}") if abs(value) < float("inf") else None
    return value
