"""What `demo` can be asked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from headprune.jobs.options.base import Force, Option, Seed


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    is_step: ClassVar[bool] = False  # of a preset
    results: ClassVar[int] = 3  # 1: heads alone, by sensitivity; 2: another page and shape of the pass
    out: Annotated[Path, Option("Folder for the models, the data and the page.")] = Path("demo-out")
    train: Annotated[int, Option("Reviews to learn from.")] = 2400
    dev: Annotated[int, Option("Reviews to evaluate on.")] = 600
    epochs: Annotated[float, Option("Passes over the training data.")] = 2.0
    force: Force = False
    seed: Seed = 0
