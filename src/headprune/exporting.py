"""`export`: a pruned model for places where headprune is not installed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from headprune.registry import Registry
from headprune.surgery.plain import as_plain

Write = Callable[[nn.Module, Path, Mapping[str, Any] | None], None]
formats: Registry[Write] = Registry("format")


def export(
    model: nn.Module,
    folder: str | Path,
    format: str = "plain",  # noqa: A002
    *,
    example: Mapping[str, Any] | None = None,
) -> Path:
    """Write a pruned model so that it loads without headprune.

    `plain`: an ordinary checkpoint whose config has the smaller numbers. It needs the same number of heads in every
    layer (`select(..., per="site")`) and a family whose config can say how wide a head is (Llama, Mistral, Qwen, Gemma,
    T5 …); anything else is refused with the reason. `example` is a batch to check it on, where none can be made.
    """
    target = Path(folder)
    formats[format](model, target, example)
    return target


@formats.add("plain")
def plain(model: nn.Module, folder: Path, example: Mapping[str, Any] | None) -> None:
    made: Any = as_plain(model, example)
    made.save_pretrained(folder)
