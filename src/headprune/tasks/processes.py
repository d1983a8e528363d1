"""Several processes (accelerate launch): who writes, and who waits."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from headprune.errors import MissingExtraError


def main_process_first() -> AbstractContextManager[Any]:
    """A block that the main process runs before the others do."""
    block: AbstractContextManager[Any] = _state().main_process_first()
    return block


def is_main_process() -> bool:
    return bool(_state().is_main_process)


def process_count() -> int:
    return int(_state().num_processes)


def _state() -> Any:
    try:
        from accelerate import PartialState
    except ImportError as error:
        raise MissingExtraError("Training needs accelerate: pip install 'headprune[tasks]'.") from error
    return PartialState()
