"""What was found about each family: one record a type, the file of all of them, and what they come to."""

from __future__ import annotations

import collections
import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.families.build_model import NotBuiltError, build

from headprune.errors import ExampleError, HeadpruneError, UnsupportedModelError
from headprune.files import loads, write_text
from headprune.model_checks import CORE, CheckedModel, NotApplicableError, Refused, checks
from headprune.structure import find_heads

STATUSES = ("pass", "core", "refused", "no-attention", "unbuilt", "failed")


@dataclass
class Family:
    """One model type."""

    status: str
    reason: str = ""
    class_name: str = ""
    sites: dict[str, int] = field(default_factory=dict)  # component -> how many
    checks: dict[str, str] = field(default_factory=dict)  # "pass", "na", "refused: why" or "failed: how"

    def to_dict(self) -> dict[str, Any]:
        return {
            "status": self.status,
            "reason": self.reason,
            "class": self.class_name,
            "sites": self.sites,
            "checks": self.checks,
        }

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> Family:
        """Read what `to_dict` wrote; a ValueError for anything else."""
        found = cls(
            entry["status"], entry["reason"], entry.get("class", ""), dict(entry["sites"]), dict(entry["checks"])
        )
        texts = (found.status, found.reason, found.class_name, *found.checks.values())
        if not all(isinstance(text, str) for text in texts) or not all(type(n) is int for n in found.sites.values()):
            raise ValueError(f"not a family: {entry!r}")
        return found


def verify_type(model_type: str) -> Family:
    """Build a tiny model of a type and put it through every check."""
    warnings.simplefilter("ignore")
    try:
        built = build(model_type)
    except NotBuiltError as error:
        return Family("unbuilt", str(error))
    name = type(built.model).__name__
    try:
        heads = find_heads(built.model, built.batch)
    except ExampleError as error:  # the batch, not the family
        return Family("unbuilt", f"no example batch that it runs on could be made: {error}", name)
    except UnsupportedModelError as error:
        return Family("refused", str(error), name)
    except Exception as error:  # a fault of ours: looking must not crash
        return Family("failed", f"{type(error).__name__}: {error}", name)
    if not heads.sites:
        with_heads = [item for item in heads.skipped if item.has_heads]
        told = "; ".join(dict.fromkeys(item.reason for item in (with_heads or heads.skipped)[:3]))
        if with_heads:
            return Family("refused", told, name)
        return Family("no-attention", told or _other_layers(built.model), name)
    sites = dict(collections.Counter(site.component for site in heads))
    subject = CheckedModel(model_type, built, heads)
    family = Family("pass", "", name, sites)
    for check in checks:
        family.checks[check] = _result(check, subject)
    family.status, family.reason = _judged(family.checks)
    return family


def _other_layers(model: Any) -> str:
    """What a model without attention is made of."""
    kinds = {
        type(module).__name__ for module in model.modules() if next(module.parameters(recurse=False), None) is not None
    }
    return f"no attention by softmax in its layers ({', '.join(sorted(kinds)[:5])})"


def _result(check: str, subject: CheckedModel) -> str:
    try:
        checks[check](subject)
    except NotApplicableError:
        return "na"
    except (UnsupportedModelError, Refused) as error:
        return f"refused: {error}"
    except HeadpruneError as error:
        return f"failed: {error}"
    except Exception as error:  # whatever a family stumbles over is this check's result
        return f"failed: {type(error).__name__}: {' '.join(str(error).split())[:240]}"
    return "pass"


def _judged(results: Mapping[str, str]) -> tuple[str, str]:
    """A family's status, and the first reason that it is not all passed."""
    bad = {name: result for name, result in results.items() if result not in ("pass", "na")}
    if not bad:
        return "pass", ""
    check, reason = next(iter(bad.items()))
    failed = [result for result in bad.values() if result.startswith("failed")]
    if failed:
        return "failed", failed[0].removeprefix("failed: ")
    told = reason.removeprefix("refused: ")
    if all(results.get(name) == "pass" for name in CORE):
        return "core", f"in the check '{check}': {told}"
    return "refused", told


def to_dict(families: Mapping[str, Family], transformers: str) -> dict[str, Any]:
    """Plain JSON values."""
    return {
        "transformers": transformers,
        "types": {name: family.to_dict() for name, family in sorted(families.items())},
    }


def write_families(folder: Path, families: Mapping[str, Family], transformers: str) -> None:
    write_text(folder / "families.json", json.dumps(to_dict(families, transformers), indent=1) + "\n")


def read_families(folder: Path, transformers: str) -> dict[str, Family]:
    """What a folder says about this version of transformers; nothing if it speaks of another, or cannot be read."""
    try:
        content = loads((folder / "families.json").read_text(encoding="utf-8"))
        if content["transformers"] != transformers:
            return {}
        return {name: Family.from_dict(entry) for name, entry in content["types"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def counted(families: Mapping[str, Family]) -> dict[str, int]:
    """How many types there are of each status."""
    found = collections.Counter(family.status for family in families.values())
    return {status: found[status] for status in STATUSES}
