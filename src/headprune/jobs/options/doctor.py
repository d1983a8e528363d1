"""What `doctor` can be asked: nothing yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, kw_only=True)
class DoctorOptions:
    is_step: ClassVar[bool] = False  # of a preset
