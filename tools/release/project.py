"""What pyproject.toml and git say about the project."""

from __future__ import annotations

import subprocess
import tarfile
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
USER_EXTRAS = ("tasks", "report", "ray", "onnx", "gguf", "openvino", "demo")  # dev is for people who change headprune


def project_table(root: Path = ROOT) -> dict[str, Any]:
    """The [project] table of pyproject.toml."""
    table: dict[str, Any] = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    return table


def requirements(extra: str | None = None, root: Path = ROOT) -> list[Requirement]:
    """What the core, or an extra, asks for; an extra that names other extras of headprune brings theirs."""
    table = project_table(root)
    found = []
    for line in table["dependencies"] if extra is None else table["optional-dependencies"][extra]:
        asked = Requirement(line)
        if canonicalize_name(asked.name) == table["name"]:
            found += [one for other in sorted(asked.extras) for one in requirements(other, root)]
        else:
            found.append(asked)
    return found


def pins(root: Path = ROOT) -> dict[str, str]:
    """Name to version, from constraints.txt."""
    lines = [line.split("#")[0].strip() for line in (root / "constraints.txt").read_text().splitlines()]
    return {canonicalize_name(name): version for name, version in (line.split("==") for line in lines if line)}


def git(*words: str, root: Path = ROOT) -> str:
    """What a git command prints."""
    return subprocess.run(["git", *words], cwd=root, check=True, capture_output=True, text=True).stdout.strip()


def commit_time(root: Path = ROOT) -> int:
    """When the last commit was made, in seconds since 1970: the date of everything in the release."""
    return int(git("log", "-1", "--format=%ct", root=root))


def export(where: Path, root: Path = ROOT) -> Path:
    """The files of the last commit in a folder of their own, so that stray files cannot get in."""
    where.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as folder:
        packed = Path(folder) / "tree.tar"
        git("archive", "--format=tar", f"--output={packed}", "HEAD", root=root)
        with tarfile.open(packed) as archive:
            archive.extractall(where, filter="data")
    return where
