"""What an earlier version stored, looked for in what this one says."""

from __future__ import annotations

from typing import Any


def only_fields_of(found: Any, stored: Any) -> Any:
    """`found` without the fields that `stored` does not have: later versions may add some, and take none away."""
    if isinstance(found, dict) and isinstance(stored, dict):
        return {name: only_fields_of(value, stored[name]) for name, value in found.items() if name in stored}
    if isinstance(found, list) and isinstance(stored, list) and len(found) == len(stored):
        return [only_fields_of(one, other) for one, other in zip(found, stored, strict=True)]
    return found
