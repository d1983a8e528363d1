"""The list of layers that a model runs one after another, and which sites are in which."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from headprune.heads import HeadMap, Site
from headprune.hooks import NotAStackError


def layer_paths(model: nn.Module) -> tuple[str, ...]:
    """Paths of the layers: of the outermost list of modules that holds the most weights."""
    lists = [
        (path, module) for path, module in model.named_modules() if isinstance(module, nn.ModuleList) and len(module)
    ]
    outer = [(path, module) for path, module in lists if not any(path.startswith(f"{other}.") for other, _ in lists)]
    if not outer:
        raise NotAStackError("it has no list of layers")
    path, found = max(outer, key=lambda item: sum(weight.numel() for weight in item[1].parameters()))
    return tuple(f"{path}.{name}" for name, _ in found.named_children())


def sites_by_layer(heads: HeadMap, paths: Sequence[str]) -> dict[str, list[Site]]:
    """Layer -> its sites, in the model's order. All sites must be in one, and in one alone."""
    found: dict[str, list[Site]] = {}
    for site in heads:
        inside = [path for path in paths if f"{site.output}.".startswith(f"{path}.")]
        if len(inside) != 1 or len(site.layers) != 1:
            raise NotAStackError(f"{site.id} is not inside one of its layers")
        found.setdefault(inside[0], []).append(site)
    return found
