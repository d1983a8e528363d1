"""The presets that come with headprune, and those of users' own files."""

from __future__ import annotations

import functools
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

from headprune import limits
from headprune.errors import PresetError
from headprune.files import bounded_text
from headprune.lab.experiments.preset_file import read_preset
from headprune.lab.experiments.presets import Preset
from headprune.registry import hint


def preset_names() -> list[str]:
    names = (entry.name for entry in _folder().iterdir())
    return sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml") and not name.startswith("_"))


def find_preset(name: str, *, trusted: bool = False) -> Preset:
    """A preset by its name, or from a file of the user's, which may run code that comes with models if it is
    `trusted`."""
    if name.endswith(".toml"):
        path = Path(name)
        try:
            return read_preset(bounded_text(path, limits.PRESET_BYTES), path.name, shared_steps(), trusted=trusted)
        except (OSError, UnicodeDecodeError) as error:
            raise PresetError(f"'{name}' cannot be read: {error}.") from error
    if name not in preset_names():
        raise PresetError(f"No preset called '{name}'. {hint(name, preset_names())} `headprune run --list` shows all.")
    return _known(name)


def all_presets() -> list[Preset]:
    return [_known(name) for name in preset_names()]


@functools.cache
def _known(name: str) -> Preset:
    return read_preset((_folder() / f"{name}.toml").read_text(encoding="utf-8"), f"{name}.toml", shared_steps())


@functools.cache
def shared_steps() -> dict[str, Any]:
    """Steps that several presets have, and their inputs, by scale."""
    return tomllib.loads((_folder() / "_shared.toml").read_text(encoding="utf-8"))


def _folder() -> Any:
    return resources.files("headprune.lab.experiments") / "presets_toml"
