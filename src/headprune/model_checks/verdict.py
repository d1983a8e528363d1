"""What the checks come to: one verdict a model."""

from __future__ import annotations

import collections
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from headprune.errors import ExampleError, HeadpruneError, UnsupportedModelError
from headprune.model_checks.checks import CORE, CheckedModel, NotApplicableError, Refused, checks
from headprune.structure.dummy_inputs import example_inputs
from headprune.structure.find import find_heads

STATUSES = ("pass", "core", "refused", "no-attention", "unbuilt", "failed")


@dataclass(frozen=True)
class Verdict:
    """What was found about a model, or about a tiny one of its type."""

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
    def from_dict(cls, entry: Mapping[str, Any]) -> Verdict:
        """Read what `to_dict` wrote; a ValueError for anything else."""
        found = cls(
            entry["status"], entry["reason"], entry.get("class", ""), dict(entry["sites"]), dict(entry["checks"])
        )
        texts = (found.status, found.reason, found.class_name, *found.checks.values())
        if not all(isinstance(text, str) for text in texts) or not all(type(n) is int for n in found.sites.values()):
            raise ValueError(f"not a verdict: {entry!r}")
        return found


def check_model(
    model: nn.Module,
    example: Mapping[str, object] | None = None,
    *,
    eager: Callable[[], nn.Module] | None = None,
    step: Callable[[str], None] = lambda check: None,
) -> Verdict:
    """Put a model through every check; `step` hears of each as it begins. The model stays as it is.

    Cost: about fifty passes of a small batch and two for each site, and a copy of the model at a time.
    """
    name = type(model).__name__
    try:
        example = example_inputs(model) if example is None else example
        heads = find_heads(model, example)
    except ExampleError as error:  # the batch, not the model
        return Verdict("unbuilt", f"no example batch that it runs on could be made: {error}", name)
    except UnsupportedModelError as error:
        return Verdict("refused", str(error), name)
    except Exception as error:  # a fault of ours: looking must not crash
        return Verdict("failed", f"{type(error).__name__}: {error}", name)
    if not heads.sites:
        with_heads = [item for item in heads.skipped if item.has_heads]
        told = "; ".join(dict.fromkeys(item.reason for item in (with_heads or heads.skipped)[:3]))
        if with_heads:
            return Verdict("refused", told, name)
        return Verdict("no-attention", told or _other_layers(model), name)
    subject = CheckedModel(model, example, heads, eager)
    results = {}
    for check in checks:
        step(check)
        results[check] = _result(check, subject)
    return Verdict(*_judged(results), name, dict(collections.Counter(site.component for site in heads)), results)


def _other_layers(model: nn.Module) -> str:
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
    except Exception as error:  # whatever a model stumbles over is this check's result
        return f"failed: {type(error).__name__}: {' '.join(str(error).split())[:240]}"
    return "pass"


def _judged(results: Mapping[str, str]) -> tuple[str, str]:
    """The status, and the first reason that not all is passed."""
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
