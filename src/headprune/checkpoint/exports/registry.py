"""The table of formats."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

from headprune.registry import NamedItems

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


class Exports(NamedItems[Format]):
    """The formats by the names that users type; installed packages offer theirs as entry points."""

    def add(self, name: str, *, loading: str, weights: str = "*.safetensors") -> Callable[[Write], Write]:
        """Register the function below: `@exports.add("mine", loading="Read mine.bin.", weights="*.bin")`."""

        def register(write: Write) -> Write:
            self.put(name, Format(write, loading, weights))
            return write

        return register

    def put(self, name: str, item: Format | Write) -> None:
        self._items[name] = item if isinstance(item, Format) else Format(item, f"Its format is called {name}.", "*")


exports = Exports("format", "headprune.exports")
