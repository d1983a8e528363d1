"""What `diff` can be asked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from headprune.jobs.options.base import Device, Force, Option, Picture


@dataclass(frozen=True, kw_only=True)
class DiffOptions:
    before: Annotated[str, Option("The model before: a folder, or a name on the hub.", is_argument=True)]
    after: Annotated[str, Option("The model after; it may be pruned.", is_argument=True)]
    out: Annotated[Path, Option("Folder for diff.json and its picture.")]
    reading: Annotated[str, Option("difference: |after - before|; magnitude: ||after| - |before||.")] = "difference"
    force: Force = False
    picture: Picture = "html"
    device: Device = "cpu"
