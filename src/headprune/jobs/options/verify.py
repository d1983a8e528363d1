"""What `verify` can be asked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from headprune.jobs.options.base import Device, Force, Option, RemoteCode


@dataclass(frozen=True, kw_only=True)
class VerifyOptions:
    models: Annotated[
        list[str] | None, Option("A model: a folder, or a name on the hub.", metavar="model", is_argument=True)
    ] = None
    out: Annotated[Path | None, Option("Folder for verdict.json, the same as data.")] = None
    every_type: Annotated[bool, Option("Moved to tools/families.", flags=("--all",), is_hidden=True)] = False
    workers: Annotated[int | None, Option("Moved to tools/families.", is_hidden=True)] = None
    limit: Annotated[float | None, Option("Moved to tools/families.", is_hidden=True)] = None
    force: Force = False
    device: Device = "cpu"
    trust_remote_code: RemoteCode = False
