"""A hook of mkdocs: `errors/*.md` in the nav of mkdocs.yml stands for the pages there that the nav does not name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def on_config(config: Any) -> Any:
    """Called by mkdocs before anything is read."""
    config["nav"] = expanded(config["nav"])
    return config


def expanded(nav: list[Any]) -> list[Any]:
    """The same nav with a line for every page."""
    named = set(paths(nav))
    return [entry for item in nav for entry in _entries(item, named)]


def paths(nav: list[Any]) -> list[str]:
    """Every path that a nav names, in order."""
    found: list[str] = []
    for item in nav:
        if isinstance(item, str):
            found.append(item)
        else:
            for inner in item.values():
                found += [inner] if isinstance(inner, str) else paths(inner)
    return found


def _entries(item: Any, named: set[str]) -> list[Any]:
    if isinstance(item, dict):
        return [
            {title: inner if isinstance(inner, str) else [e for i in inner for e in _entries(i, named)]}
            for title, inner in item.items()
        ]
    if "*" not in item:
        return [item]
    pages = sorted(path.relative_to(HERE).as_posix() for path in HERE.glob(item))
    return [page for page in pages if page not in named]
