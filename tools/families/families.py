"""What was found about each type: the file of all verdicts, and what they come to."""

from __future__ import annotations

import collections
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tools.families.build_model import NotBuiltError, build

from headprune.files import loads, write_text
from headprune.model_checks import STATUSES, Verdict, check_model


def verify_type(model_type: str) -> Verdict:
    """Build a tiny model of a type and put it through every check."""
    warnings.simplefilter("ignore")
    try:
        built = build(model_type)
    except NotBuiltError as error:
        return Verdict("unbuilt", str(error))
    return check_model(built.model, built.batch, eager=lambda: build(model_type, attention="eager").model)


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
