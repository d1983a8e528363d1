"""Dependencies point one way, and only where they may."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from tools.layers import LAYERS, table

from tests import places

ROOT = places.ROOT / "src" / "headprune"

ORDER = list(LAYERS)
FILES = sorted(ROOT.rglob("*.py"))


def layer_of(path: Path, root: Path = ROOT) -> str:
    return layer_of_parts(path.relative_to(root).with_suffix("").parts)


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


def against_the_order(path: Path, root: Path = ROOT) -> list[str]:
    """What a module imports from below it."""
    mine, found = ORDER.index(layer_of(path, root)), []
    for name, line in imports_of(path):
        layer = layer_of_import(name)
        asked = (layer is not None and path.name != "__init__.py") or (layer and layer_of(path, root) != "__init__")
        if asked and ORDER.index(layer) > mine:
            found.append(f"{path.name}:{line} imports {name}")
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_module_imports_only_from_above(path):
    """No import against the order."""
    assert not against_the_order(path)


def hooks_elsewhere(root: Path = ROOT) -> list[str]:
    return [
        str(path.relative_to(root))
        for path in sorted(root.rglob("*.py"))
        if layer_of(path, root) != "hooks" and "register_forward" in path.read_text()
    ]


def test_only_hooks_registers_hooks():
    """The rest asks it to."""
    assert not hooks_elsewhere()


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


IN_THE_FIELDS_WORDS = {"masking", "modeling", "scoring", "tracing", "training"}


def verbs(root: Path = ROOT) -> set[str]:
    """Modules and rooms that are called by what they do."""
    names = {path.stem for path in root.rglob("*.py")} | {path.parent.name for path in root.rglob("*.py")}
    return {name for name in names if name.endswith("ing")} - IN_THE_FIELDS_WORDS


def test_modules_are_called_by_nouns():
    """Not by what they do: -ing only where the field says so."""
    assert not verbs()


LOGIC = (ast.For, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.BinOp, ast.AugAssign)


def logic_in(source: str, allowed_functions: int) -> list[str]:
    """What a file of the command line must leave to the library: loops, arithmetic, functions besides the command."""
    tree = ast.parse(source)
    found = [f"line {node.lineno}: {type(node).__name__}" for node in ast.walk(tree) if isinstance(node, LOGIC)]
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return found + [f"line {node.lineno}: {node.name}" for node in functions[allowed_functions:]]


def logic_on_the_command_line(root: Path = ROOT) -> list[str]:
    """options.py makes commands of jobs, app.py is the group; any other file would be one command."""
    return [
        f"{path.name}, {found}"
        for path in sorted((root / "cli").glob("*.py"))
        if path.name != "options.py"
        for found in logic_in(path.read_text(), 10 if path.name == "app.py" else 1)
    ]


def test_the_command_line_has_no_logic():
    """It parses, calls and prints."""
    assert not logic_on_the_command_line()


@pytest.mark.parametrize("line", ["x = 1 + 2", "for x in y: pass", "[x for x in y]", "def f(): pass\ndef g(): pass"])
def test_logic_in_the_command_line_is_noticed(line):
    """A loop, arithmetic, a second function."""
    assert logic_in(line, 1)


def test_contributing_shows_the_order():
    """The table is made of the list that this test walks: `make docs` writes it."""
    assert table() in (places.ROOT / "CONTRIBUTING.md").read_text()


def test_a_tree_that_breaks_the_rules_is_refused(tmp_path):
    """Each rule finds what breaks it, in a tree made for it, and nothing in the rest of that tree."""
    files = {
        "heads/mask.py": "import json",
        "heads/value.py": "from headprune.surgery.prune import prune_",
        "surgery/pruning.py": "from headprune.heads.mask import HeadMask",
        "placing/place.py": "",
        "structure/look.py": "handle = module.register_forward_hook(keep)",
        "hooks/tracing.py": "handle = module.register_forward_hook(keep)",
        "cli/prune.py": "def prune(): ...\ndef share(text): return float(text) / 100",
        "cli/score.py": "def score(): ...",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert verbs(tmp_path) == {"pruning", "placing"}
    assert hooks_elsewhere(tmp_path) == ["structure/look.py"]
    assert against_the_order(tmp_path / "heads" / "value.py", tmp_path)
    assert not against_the_order(tmp_path / "surgery" / "pruning.py", tmp_path)
    assert logic_on_the_command_line(tmp_path) == ["prune.py, line 2: BinOp", "prune.py, line 2: share"]
