"""What was found about each type: the file of all verdicts, and what they come to."""

from __future__ import annotations

import collections
import dataclasses
import json
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tools.families.build_model import Built, NotBuiltError, build

from headprune.errors import HeadpruneError
from headprune.files import loads, write_text
from headprune.model_checks import STATUSES, Verdict, check_model
from headprune.structure.find import examined

MOST_SECONDS, MOST_BYTES = 20.0, 2**30  # of looking at a tiny model


def verify_type(model_type: str) -> Verdict:
    """Build a tiny model of a type and put it through every check."""
    warnings.simplefilter("ignore")
    try:
        built = build(model_type)
    except NotBuiltError as error:
        return Verdict("unbuilt", str(error))
    found = check_model(built.model, built.batch, eager=lambda: build(model_type, attention="eager").model)
    return _within_limits(built, found)


def _within_limits(built: Built, found: Verdict) -> Verdict:
    """The verdict, unless looking at a tiny model takes what only a large one may: its example is too large then."""
    begun, held = time.process_time(), _peak_memory(reset=True)
    try:
        examined(built.model, neurons=True)
    except HeadpruneError:
        return found  # the verdict says it already
    seconds, held = time.process_time() - begun, _peak_memory() - held
    if seconds <= MOST_SECONDS and held <= MOST_BYTES:
        return found
    told = f"looking at a tiny model takes {seconds:.0f} s and {held / 2**30:.1f} GiB (at most 20 s and 1 GiB)"
    return dataclasses.replace(found, status="failed", reason=told)


def _peak_memory(*, reset: bool = False) -> int:
    """The most bytes that this process has held, since it was reset; 0 where the system does not tell."""
    try:
        if reset:
            Path("/proc/self/clear_refs").write_text("5")
        status = Path("/proc/self/status").read_text(encoding="utf-8")
    except OSError:
        return 0
    return 1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))


def to_dict(families: Mapping[str, Verdict], transformers: str) -> dict[str, Any]:
    """Plain JSON values."""
    return {
        "transformers": transformers,
        "types": {name: family.to_dict() for name, family in sorted(families.items())},
    }


def write_families(folder: Path, families: Mapping[str, Verdict], transformers: str) -> None:
    write_text(folder / "families.json", json.dumps(to_dict(families, transformers), indent=1) + "\n")


def read_families(folder: Path, transformers: str) -> dict[str, Verdict]:
    """What a folder says about this version of transformers; nothing if it speaks of another, or cannot be read."""
    try:
        content = loads((folder / "families.json").read_text(encoding="utf-8"))
        if content["transformers"] != transformers:
            return {}
        return {name: Verdict.from_dict(entry) for name, entry in content["types"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def counted(families: Mapping[str, Verdict]) -> dict[str, int]:
    """How many types there are of each status."""
    found = collections.Counter(family.status for family in families.values())
    return {status: found[status] for status in STATUSES}
