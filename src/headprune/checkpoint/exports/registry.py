"""The table of formats."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from headprune.registry import NamedItems


@dataclass(frozen=True)
class Checked:
    """What comparing a written file with the model found: figures for programs, lines for people."""

    figures: Mapping[str, float] = field(default_factory=dict)
    told: tuple[str, ...] = ()


# write(model, folder, example, *, options of the format): into a new folder
Write = Callable[..., Checked | None]


@dataclass(frozen=True)
class Format:
    """How a model is written, what its card says about loading it, and which files are its weights. `file` is the one
    that is the whole model, where there is one: an export may then name a file instead of a folder."""

    write: Write
    loading: str
    weights: str
    file: str = ""

    @property
    def options(self) -> list[str]:
        parameters = inspect.signature(self.write).parameters.values()
        return [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]


class Exports(NamedItems[Format]):
    """The formats by the names that users type; installed packages offer theirs as entry points."""

    def add(
        self, name: str, *, loading: str, weights: str = "*.safetensors", file: str = ""
    ) -> Callable[[Write], Write]:
        """Register the function below: `@exports.add("mine", loading="Read mine.bin.", weights="*.bin")`."""

        def register(write: Write) -> Write:
            self.put(name, Format(write, loading, weights, file))
            return write

        return register

    def put(self, name: str, item: Format | Write) -> None:
        self._items[name] = item if isinstance(item, Format) else Format(item, f"Its format is called {name}.", "*")


exports = Exports("format", "headprune.exports")
