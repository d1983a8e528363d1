"""One file out of several of ours: the functions asked for and whatever they use, as plain source.

So that a checkpoint can carry the code that loads it, and there is still one place for each piece of it.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib import resources

PACKAGE = "headprune"


@dataclass
class _Module:
    """The top level of a file: what it defines, and what it imports under which name."""

    lines: list[str]
    nodes: dict[str, ast.stmt] = field(default_factory=dict)
    ours: dict[str, tuple[str, str]] = field(default_factory=dict)  # name here -> module, name there
    others: dict[str, str] = field(default_factory=dict)  # name -> import statement

    def source(self, node: ast.stmt) -> str:
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
        return "\n".join(self.lines[first - 1 : node.end_lineno])


def bundle(roots: list[tuple[str, str]], more: Iterable[str] = ()) -> str:
    """The source of (module, name) and of all that they use; imports of other packages, and `more`, first."""
    modules: dict[str, _Module] = {}
    wanted: dict[tuple[str, str], None] = {}
    imports: dict[str, None] = dict.fromkeys(more)
    waiting = list(roots)
    while waiting:
        module, name = waiting.pop()
        if (module, name) in wanted:
            continue
        read = modules.setdefault(module, _read(module))
        if name in read.ours:  # handed on by a package
            waiting.append(read.ours[name])
            continue
        wanted[(module, name)] = None
        for used in _names(read.nodes[name]):
            if used in read.ours:
                waiting.append(read.ours[used])
            elif used in read.nodes:
                waiting.append((module, used))
            elif used in read.others:
                imports[read.others[used]] = None
            else:
                assert hasattr(builtins, used) or used == "__file__", f"{module}.{name} uses {used}, from nowhere"
    names = [name for _, name in wanted]
    assert len(names) == len(set(names)), f"two things have one name: {sorted(n for n in names if names.count(n) > 1)}"
    parts = ["from __future__ import annotations\n", "\n".join(sorted(imports)), ""]
    for module in _in_order(modules):
        parts += [
            f"\n{modules[module].source(node)}\n"
            for name, node in modules[module].nodes.items()
            if (module, name) in wanted
        ]
    return "\n".join(parts)


def _read(module: str) -> _Module:
    folder = resources.files(PACKAGE)
    parts = module.split(".")[1:]
    path = folder.joinpath(*parts[:-1], f"{parts[-1]}.py") if parts else folder.joinpath("__init__.py")
    if not path.is_file():
        path = folder.joinpath(*parts, "__init__.py")
    text = path.read_text(encoding="utf-8")
    found = _Module(text.splitlines())
    for node in ast.parse(text).body:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == PACKAGE:
            for alias in node.names:
                found.ours[alias.asname or alias.name] = (node.module, alias.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            start = f"from {node.module} import " if isinstance(node, ast.ImportFrom) else "import "
            for alias in node.names:
                name = (alias.asname or alias.name).partition(".")[0]
                found.others[name] = start + alias.name + (f" as {alias.asname}" if alias.asname else "")
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.nodes[node.name] = node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name):
                    found.nodes[target.id] = node
    return found


def _names(node: ast.AST) -> Iterator[str]:
    """Global names that a definition uses, also in annotations; its own are left out."""
    own = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    own |= {a.arg for a in ast.walk(node) if isinstance(a, ast.arg)}
    own |= {n.name for n in ast.walk(node) if isinstance(n, ast.ExceptHandler) and n.name}
    for n in ast.walk(node):
        if isinstance(n, ast.FunctionDef | ast.ClassDef) and n is not node:
            own.add(n.name)
        if isinstance(n, ast.Import | ast.ImportFrom):
            own |= {(alias.asname or alias.name).partition(".")[0] for alias in n.names}
    for n in ast.walk(node):
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load) and n.id not in own:
            yield n.id


def _in_order(modules: dict[str, _Module]) -> list[str]:
    """Files before those that use them: classes and constants are needed when a file is read."""
    done: dict[str, None] = {}

    def visit(module: str) -> None:
        if module in done or module not in modules:
            return
        for other, _ in modules[module].ours.values():
            visit(other)
        done[module] = None

    for module in modules:
        visit(module)
    return list(done)
