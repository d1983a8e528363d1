"""What `doctor` can be asked: nothing yet."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class DoctorOptions:
    pass
