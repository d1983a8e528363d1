"""A trial: one piece of work with everything that decides its result."""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from headprune.errors import DataError
from headprune.jobs.job import job_names, results_version
from headprune.lab.experiments.work import works

RESULTS = 2  # rises when the figures of every kind of work change; those of one kind have a version of their own
FIRST = "0.1.0"  # made trials that did not say which version of the results they belong to


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Same trial, same key, on any machine: results stored under it are not computed again.

    `needs` are other trials by the name under which this one knows them; their keys are part of its own, so that a
    change anywhere before it gives it another key. `version` says what computes it, as RESULTS and the version of its
    work's own results: figures of different versions are never taken for one another. `step` and `label` are for people
    and no part of the key.
    """

    work: str
    params: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    needs: Mapping[str, str] = field(default_factory=dict)
    step: str = ""
    label: str = ""
    version: str = ""  # of the results; if it is not given, what this headprune computes
    schema: ClassVar[int] = 1

    def __post_init__(self) -> None:
        try:
            plain = json.loads(json.dumps(self.params, allow_nan=False))
        except (TypeError, ValueError) as error:
            raise DataError(f"The parameters of a trial must be plain JSON values: {error}.") from error
        object.__setattr__(self, "params", plain)  # a copy of its own: nobody changes it from outside
        object.__setattr__(self, "needs", dict(self.needs))
        if not self.version:
            object.__setattr__(self, "version", current_version(self.kind))

    @property
    def kind(self) -> str:
        """What is done: the name of a job, or of another work."""
        return str(self.params.get("command") or self.work)

    @property
    def made_by(self) -> str:
        """Nothing if this headprune computes such results; else which one did, for people."""
        if self.version == FIRST:
            return FIRST
        current = current_version(self.kind)
        if _version_of(self.kind) is None:  # a work of somebody's own, which only its module knows
            current, found = current.partition(".")[0], self.version.partition(".")[0]
        else:
            found = self.version
        return "" if found == current else f"results {self.version}"

    def key(self) -> str:
        """From what is done and to what, not from the names that a preset has for it: `{model}` counts as the trial or
        the data that it stands for. So the same work in two presets is done once."""
        stands_for = {**self.params.get("inputs", {}), **self.needs}
        params = {name: value for name, value in self.params.items() if name not in ("inputs", "values")}
        content = {
            "schema": self.schema, "work": self.work, "params": _named(params, stands_for), "seed": self.seed,
            "needs": sorted(self.needs.values()),
        }  # fmt: skip
        if self.version != FIRST:
            content["version"] = self.version
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

    def to_dict(self) -> dict[str, Any]:
        return {
            "work": self.work, "params": dict(self.params), "seed": self.seed, "needs": dict(self.needs),
            "step": self.step, "label": self.label, **({"version": self.version} if self.version != FIRST else {}),
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
        version = content.get("version", FIRST)
        if not isinstance(version, str) or not re.fullmatch(r"[0-9.]{1,20}", version):
            raise ValueError(f"'version' is {str(version)[:60]!r}")
        return cls(version=version, **{name: content[name] for name in _KINDS})


def current_version(kind: str) -> str:
    """Of the results that this headprune computes for a kind of work."""
    return f"{RESULTS}.{_version_of(kind) or 1}"


def _version_of(kind: str) -> int | None:
    """None for what is no work and no job here: running it tells."""
    known = works.find(kind)
    return known.version if known is not None else _job_version(kind)


@functools.cache
def _job_version(kind: str) -> int | None:
    return results_version(kind) if kind in job_names() else None


_KINDS = {"work": str, "params": dict, "seed": int, "needs": dict, "step": str, "label": str}


def _named(value: object, stands_for: Mapping[str, str]) -> Any:
    """Placeholders replaced by the keys of what they stand for."""
    if isinstance(value, dict):
        return {name: _named(inner, stands_for) for name, inner in value.items()}
    if isinstance(value, list):
        return [_named(inner, stands_for) for inner in value]
    if isinstance(value, str):
        for name, key in stands_for.items():
            value = value.replace(f"{{{name}}}", f"{{{key}}}")
    return value
