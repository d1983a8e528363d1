"""Teach transformers to load pruned checkpoints and our own models, without importing it.

If transformers' model module is loaded already, it is taught at once; otherwise at the moment it is first imported.
Importing it from here would cost over a second in every program that says `import headprune`.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

TARGET = "transformers.modeling_utils"
AUTO = "transformers.models.auto"
# What our models need, beside TARGET.
MODELS = (f"{AUTO}.modeling_auto", "transformers.modeling_layers", "transformers.generation.utils")


def when_imported(name: str, action: Callable[[ModuleType], None]) -> None:
    """Run `action` on a module now, or as soon as somebody imports it."""
    module = sys.modules.get(name)
    if module is not None and not _is_loading(name):
        action(module)
    elif not any(isinstance(finder, _OneShotFinder) and finder.name == name for finder in sys.meta_path):
        sys.meta_path.insert(0, _OneShotFinder(name, action))


def teach_transformers() -> None:
    when_imported(TARGET, _install)
    when_imported(f"{AUTO}.configuration_auto", _register_configs)
    for name in MODELS:
        when_imported(name, _register_models)


def _install(module: ModuleType) -> None:
    from headprune.checkpoint import gated as gates_checkpoint
    from headprune.checkpoint import pruned as surgery_checkpoint

    surgery_checkpoint.install(module)
    gates_checkpoint.install(module)  # after it: gates go onto the skeleton as pruned
    _register_models(module)


def _register_configs(module: ModuleType) -> None:
    import headprune.lab.models.configuration  # noqa: F401  # registers at its end


def _register_models(module: ModuleType) -> None:
    """As soon as the Auto classes are loaded and nothing that our models import is half loaded: any of these modules
    may be the one whose import loads the others, and the last to be finished calls this again."""
    half = [name for name in (TARGET, *MODELS) if name != module.__name__ and _is_loading(name)]
    if f"{AUTO}.modeling_auto" in sys.modules and not half:
        import headprune.lab.models.modeling  # noqa: F401  # registers at its end


def _is_loading(name: str) -> bool:
    return bool(getattr(getattr(sys.modules.get(name), "__spec__", None), "_initializing", False))


class _OneShotFinder(importlib.abc.MetaPathFinder):
    """Finds one module as everybody else would, and adds an action to its loader."""

    def __init__(self, name: str, action: Callable[[ModuleType], None]) -> None:
        self.name, self.action = name, action
        self.asking = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name or self.asking:
            return None
        self.asking = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self.asking = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: importlib.abc.Loader, finder: _OneShotFinder) -> None:
        self.loader, self.finder = loader, finder

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)
        if self.finder in sys.meta_path:  # done; asking for the spec alone does not use the hook up
            sys.meta_path.remove(self.finder)
        self.finder.action(module)

    def __getattr__(self, name: str) -> object:
        return getattr(self.loader, name)  # readers of source code ask the loader for it
