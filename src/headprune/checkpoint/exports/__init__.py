"""Pruned models for places where headprune is not installed. One file a format; a file put here is found by itself."""

from __future__ import annotations

import importlib
import pkgutil

from headprune.checkpoint.exports.registry import Checked, Format, exports

__all__ = ["Checked", "Format", "exports"]

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
