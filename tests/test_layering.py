"""Dependencies point one way, and only where they may."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests import places

ROOT = places.ROOT / "src" / "headprune"

# A module imports only from those above it in this list. `room.module` is a module whose place differs from its room's:
# what a model's config says of its heads is part of what is on disk, and finding heads reads it.
LAYERS = [
    "errors",
    "registry",
    "types",
    "typed_json",
    "jobs.options",
    "files",
    "stats",
    "heads",
    "patches",
    "structure.adapters",
    "hooks",
    "checkpoint.config_entry",
    "structure",
    "masking",
    "scoring",
    "cost",
    "surgery",
    "recovery",
    "gates",
    "checkpoint",
    "model_checks",
    "budgets",
    "lab.models",
    "tasks",
    "lab.analysis",
    "jobs",
    "lab.experiments",
    "lab.report",
    "jobs.report",
    "jobs.run",
    "lab",
    "compat",
    "integration",
    "__init__",
    "cli",
    "__main__",
]
FILES = sorted(ROOT.rglob("*.py"))


def layer_of(path: Path) -> str:
    return layer_of_parts(path.relative_to(ROOT).with_suffix("").parts)


def layer_of_parts(parts: tuple[str, ...]) -> str:
    inner = ".".join(parts[:2])
    return inner if inner in LAYERS else parts[0]


def imports_of(path: Path) -> list[tuple[str, int]]:
    """Every module that a file imports, with the line, wherever the import stands."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [(f"{node.module}.{alias.name}", node.lineno) for alias in node.names]
    return found


def layer_of_import(name: str) -> str | None:
    parts = tuple(name.split("."))
    if parts[0] != "headprune":
        return None
    layer = layer_of_parts(parts[1:]) if len(parts) > 1 else "__init__"
    return layer if layer in LAYERS else "__init__"


def test_every_module_has_a_place():
    """A new module must be put into the order."""
    assert {layer_of(path) for path in FILES} == set(LAYERS)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_module_imports_only_from_above(path):
    """No import against the order."""
    mine = LAYERS.index(layer_of(path))
    for name, line in imports_of(path):
        layer = layer_of_import(name)
        if (layer is not None and path.name != "__init__.py") or (layer and layer_of(path) != "__init__"):
            assert LAYERS.index(layer) <= mine, f"{path.name}:{line} imports {name}"


def test_only_hooks_registers_hooks():
    """The rest asks it to."""
    for path in FILES:
        if layer_of(path) != "hooks":
            assert "register_forward" not in path.read_text(), path


def test_values_know_no_model_code():
    """heads/ imports neither torch nor transformers."""
    for path in (ROOT / "heads").glob("*.py"):
        assert not [name for name, _ in imports_of(path) if name.split(".")[0] in ("torch", "transformers")], path


def test_the_library_does_not_print_and_runs_no_foreign_code():
    """No print, no pickle, no eval, no exec."""
    for path in FILES:
        names = {
            node.func.id
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        assert not names & {"print", "eval", "exec"}, path
        assert not [name for name, _ in imports_of(path) if name.split(".")[0] in ("pickle", "dill", "cloudpickle")], (
            path
        )
