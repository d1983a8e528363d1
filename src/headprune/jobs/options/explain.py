"""What `explain` can be asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from headprune.jobs.options.base import Option


@dataclass(frozen=True, kw_only=True)
class ExplainOptions:
    is_step: ClassVar[bool] = False  # of a preset
    error: Annotated[str | None, Option("An error by name, as MaskError; without one, all.", is_argument=True)] = None
