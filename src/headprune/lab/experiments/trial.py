"""A trial: one piece of work with everything that decides its result."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from headprune.errors import DataError


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Same trial, same key, on any machine: results stored under it are not computed again.

    `needs` are other trials by the name under which this one knows them; their keys are part of its own, so that a
    change anywhere before it gives it another key. `step` and `label` are for people and no part of the key.
    """

    work: str
    params: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    needs: Mapping[str, str] = field(default_factory=dict)
    step: str = ""
    label: str = ""
    schema: ClassVar[int] = 1

    def __post_init__(self) -> None:
        try:
            plain = json.loads(json.dumps(self.params, allow_nan=False))
        except (TypeError, ValueError) as error:
            raise DataError(f"The parameters of a trial must be plain JSON values: {error}.") from error
        object.__setattr__(self, "params", plain)  # a copy of its own: nobody changes it from outside
        object.__setattr__(self, "needs", dict(self.needs))

    def key(self) -> str:
        """From what is done and to what, not from the names that a preset has for it: `{model}` counts as the trial or
        the data that it stands for. So the same work in two presets is done once."""
        stands_for = {**self.params.get("inputs", {}), **self.needs}
        params = {name: value for name, value in self.params.items() if name not in ("inputs", "values")}
        content = {
            "schema": self.schema, "work": self.work, "params": _named(params, stands_for), "seed": self.seed,
            "needs": sorted(self.needs.values()),
        }  # fmt: skip
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

    def to_dict(self) -> dict[str, Any]:
        return {
            "work": self.work, "params": dict(self.params), "seed": self.seed, "needs": dict(self.needs),
            "step": self.step, "label": self.label,
        }  # fmt: skip

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Trial:
        """Read what `to_dict` wrote; a KeyError, TypeError or ValueError for anything else."""
        for name, kind in _KINDS.items():
            if not isinstance(content[name], kind):
                raise ValueError(f"'{name}' is {str(content[name])[:60]!r}")
        inputs, values = (content["params"].get(name, {}) for name in ("inputs", "values"))
        # Names with braces would be replaced again and again: a short file, an endless text.
        keys = [*inputs.values(), *content["needs"].values()]
        if not isinstance(values, dict) or not all(isinstance(key, str) and "{" not in key for key in keys):
            raise ValueError("its inputs and needs are not those of a trial")
        return cls(**{name: content[name] for name in ("work", "params", "seed", "needs", "step", "label")})


_KINDS = {"work": str, "params": dict, "seed": int, "needs": dict, "step": str, "label": str}


def _named(value: Any, stands_for: Mapping[str, str]) -> Any:
    """Placeholders replaced by the keys of what they stand for."""
    if isinstance(value, dict):
        return {name: _named(inner, stands_for) for name, inner in value.items()}
    if isinstance(value, list):
        return [_named(inner, stands_for) for inner in value]
    if isinstance(value, str):
        for name, key in stands_for.items():
            value = value.replace(f"{{{name}}}", f"{{{key}}}")
    return value
