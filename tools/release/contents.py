"""Is in the wheel and the sdist what should be, and nothing else? Each problem is a sentence."""

from __future__ import annotations

import argparse
import ast
import configparser
import email
import re
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from email.message import Message
from pathlib import Path, PurePosixPath

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tools.release.project import ROOT, export, project_table, requirements

# What the code reads at run time, beside modules. A pattern that matches nothing is a problem.
NEEDED = (
    "headprune/py.typed",
    "headprune/lab/experiments/presets_toml/*.toml",
    "headprune/lab/report/page/page.css",
    "headprune/lab/report/page/page.html.j2",
    "headprune/lab/report/page/page.js",
    "headprune/lab/playground/page/*.html",
    "headprune/lab/playground/page/*.js",
    "headprune/lab/playground/page/*.css",
    "headprune/lab/experiments/times.json",
)
WHEEL_KINDS = {".py", ".toml", ".css", ".js", ".j2", ".html", ".json", ".typed"}  # so: no data, no compiled files
LEFT_OUT = (".ci/",)  # in the repository, but of no use without it
LARGEST = 1_000_000  # bytes of one file


def pick(files: Iterable[Path]) -> tuple[Path, Path]:
    """The one wheel and the one sdist among files."""
    files = list(files)
    (wheel,) = [path for path in files if path.suffix == ".whl"]
    (sdist,) = [path for path in files if path.name.endswith(".tar.gz")]
    return wheel, sdist


def unpack(sdist: Path, where: Path) -> Path:
    """The folder that an sdist holds."""
    with tarfile.open(sdist) as archive:
        archive.extractall(where, filter="data")
    (folder,) = where.iterdir()
    return folder


def tracked(tree: Path) -> set[str]:
    """Files of an exported tree, as in git."""
    return {path.relative_to(tree).as_posix() for path in tree.rglob("*") if path.is_file()}


def version_of(tree: Path) -> str:
    """`headprune.__version__`, read without importing it."""
    for node in ast.parse((tree / "src/headprune/__init__.py").read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__version__":
            return str(ast.literal_eval(node.value))
    raise ValueError("src/headprune/__init__.py does not say __version__")


def problems(wheel: Path, sdist: Path, tree: Path) -> list[str]:
    """What is wrong with a wheel and an sdist built from a tree."""
    with zipfile.ZipFile(wheel) as archive:
        found = [*_wheel_files(archive, tree), *_metadata(archive, tree)]
    return [*found, *_sdist_files(sdist, tree), *_citation(tree)]


def _wheel_files(archive: zipfile.ZipFile, tree: Path) -> Iterator[str]:
    info = f"headprune-{version_of(tree)}.dist-info"
    names = {entry.filename for entry in archive.infolist()}
    code = {name.removeprefix("src/") for name in tracked(tree) if name.startswith("src/headprune/")}
    about = {f"{info}/{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")}
    yield from (f"wheel: {name} is missing" for name in sorted((code | about) - names))
    yield from (f"wheel: {name} does not belong there" for name in sorted(names - code - about))
    yield from (
        f"wheel: {name} is of a kind that wheels of headprune do not hold"
        for name in sorted(names - about)
        if PurePosixPath(name).suffix not in WHEEL_KINDS
    )
    yield from (
        f"wheel: nothing matches {pattern}"
        for pattern in NEEDED
        if not any(PurePosixPath(name).match(pattern) for name in names)
    )
    source = {name: f"src/{name}" for name in code} | {f"{info}/licenses/LICENSE": "LICENSE"}
    for name in sorted(set(source) & names):
        if archive.read(name) != (tree / source[name]).read_bytes():
            yield f"wheel: {name} is not that of the tree"


def _metadata(archive: zipfile.ZipFile, tree: Path) -> Iterator[str]:
    info = f"headprune-{version_of(tree)}.dist-info"
    if not {f"{info}/METADATA", f"{info}/entry_points.txt"} <= set(archive.namelist()):
        return  # told above
    said = email.message_from_string(archive.read(f"{info}/METADATA").decode())
    table = project_table(tree)
    single = {
        "Name": table["name"],
        "Version": version_of(tree),
        "Summary": table["description"],
        "License-Expression": table["license"],
        "Requires-Python": table["requires-python"],
        "Description-Content-Type": "text/markdown",
    }
    for field, wanted in single.items():
        if said[field] != wanted:
            yield f"metadata: {field} is {said[field]!r}, expected {wanted!r}"
    if str(said.get_payload()).strip() != (tree / "README.md").read_text().strip():
        yield "metadata: the description is not README.md"
    extras = {canonicalize_name(name) for name in table["optional-dependencies"]}
    if set(said.get_all("Provides-Extra", [])) != extras:
        yield f"metadata: extras are {sorted(said.get_all('Provides-Extra', []))}, expected {sorted(extras)}"
    yield from _requirements(said, tree)
    scripts = configparser.ConfigParser()
    scripts.read_string(archive.read(f"{info}/entry_points.txt").decode())
    if dict(scripts["console_scripts"]) != table["scripts"]:
        yield f"entry points are {dict(scripts['console_scripts'])}, expected {table['scripts']}"


def _requirements(said: Message, tree: Path) -> Iterator[str]:
    parts = (None, *project_table(tree)["optional-dependencies"])
    wanted = {_plain(asked, part) for part in parts for asked in requirements(part, tree)}
    found = set()
    for line in said.get_all("Requires-Dist", []):
        extra = re.search(r"extra == ['\"]([^'\"]+)['\"]", line)
        found.add(_plain(Requirement(line), extra[1] if extra else None))
    yield from (f"metadata: {asked} is not required" for asked in sorted(wanted - found))
    yield from (f"metadata: {asked} is required" for asked in sorted(found - wanted))


def _plain(asked: Requirement, extra: str | None) -> str:
    options = f"[{','.join(sorted(asked.extras))}]" if asked.extras else ""
    part = f"the extra {canonicalize_name(extra)}" if extra else "the core"
    return f"{canonicalize_name(asked.name)}{options}{asked.specifier} of {part}"


def _sdist_files(sdist: Path, tree: Path) -> Iterator[str]:
    top = f"headprune-{version_of(tree)}/"
    with tarfile.open(sdist) as archive:
        members = {member.name: _bytes(archive, member) for member in archive.getmembers() if member.isfile()}
    yield from (f"sdist: {name} lies outside {top}" for name in members if not name.startswith(top))
    names = {name.removeprefix(top) for name in members}
    wanted = {name for name in tracked(tree) if not name.startswith(LEFT_OUT)} | {"PKG-INFO"}
    yield from (f"sdist: {name} is missing" for name in sorted(wanted - names))
    yield from (f"sdist: {name} does not belong there" for name in sorted(names - wanted))
    for name in sorted((names & wanted) - {"PKG-INFO"}):
        if members[top + name] != (tree / name).read_bytes():
            yield f"sdist: {name} is not that of the tree"
        if len(members[top + name]) > LARGEST:
            yield f"sdist: {name} has {len(members[top + name]):,} bytes"


def _bytes(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    stream = archive.extractfile(member)
    assert stream is not None, "only a folder or a link has none"
    return stream.read()


def _citation(tree: Path) -> Iterator[str]:
    cited = re.search(r"^version: *[\"']?([^\"'\s]+)", (tree / "CITATION.cff").read_text(), re.MULTILINE)
    if cited is None or cited[1] != version_of(tree):
        yield f"CITATION.cff says version {cited and cited[1]}, headprune.__version__ is {version_of(tree)}"
    if f"\n## {version_of(tree)}" not in (tree / "CHANGELOG.md").read_text():
        yield f"CHANGELOG.md has no section for {version_of(tree)}"


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("dist", type=Path, nargs="?", default=ROOT / "dist")
    wheel, sdist = pick(words.parse_args().dist.iterdir())
    with tempfile.TemporaryDirectory() as folder:
        found = problems(wheel, sdist, export(Path(folder) / "tree"))
    if found:
        sys.exit("\n".join(found))
    print(f"{wheel.name} and {sdist.name} hold what they should")


if __name__ == "__main__":
    main()
