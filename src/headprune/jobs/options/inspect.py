"""What `inspect` can be asked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from headprune.jobs.options.base import Device, Force, Model, Option, RemoteCode


@dataclass(frozen=True, kw_only=True)
class InspectOptions:
    model: Model
    out: Annotated[Path | None, Option("Folder for heads.json and heads.svg, the same as data and as a picture.")] = (
        None
    )
    force: Force = False
    device: Device = "cpu"
    trust_remote_code: RemoteCode = False
