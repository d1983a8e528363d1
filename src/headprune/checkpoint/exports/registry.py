"""The table of formats."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

from headprune.registry import Registry

Write = Callable[..., None]  # write(model, folder, example, *, options of the format): into a new folder


@dataclass(frozen=True)
class Format:
    """How a model is written, what its card says about loading it, and which files are its weights."""

    write: Write
    loading: str
    weights: str

    @property
    def options(self) -> list[str]:
        parameters = inspect.signature(self.write).parameters.values()
        return [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]


exports: Registry[Format] = Registry("format")


def export_format(name: str, *, loading: str, weights: str = "*.safetensors") -> Callable[[Write], Write]:
    """Register the function below under the name that users type."""

    def register(write: Write) -> Write:
        exports.add(name)(Format(write, loading, weights))
        return write

    return register
