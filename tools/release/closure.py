"""Everything that headprune needs, and what that needs in turn, as installed here."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from email.message import Message
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from tools.release.project import ROOT, USER_EXTRAS, pins, requirements

Lookup = Callable[[str], Message]
PARTS = (None, *USER_EXTRAS)  # the core, then the extras

# Which libraries a build of torch brings is the choice of whoever installs it; NVIDIA's come under NVIDIA's own terms.
OF_CUDA = ("nvidia-", "cuda-", "triton")


@dataclass
class Package:
    """An installed package, and the names of those that it needs."""

    name: str
    version: str
    metadata: Message
    needs: set[str] = field(default_factory=set)


def installed(name: str) -> Message:
    """The metadata of a package of this environment."""
    try:
        return importlib.metadata.metadata(name)  # type: ignore[return-value]
    except importlib.metadata.PackageNotFoundError:
        raise LookupError(f"{name} is needed but not installed: run `make install`") from None


def closure(asked: Iterable[Requirement], look: Lookup = installed) -> dict[str, Package]:
    """Name to package, for requirements and all that they bring on this machine and Python."""
    found: dict[str, Package] = {}
    seen: set[tuple[str, str]] = set()  # package and extra
    waiting: list[tuple[str | None, Requirement, str]] = [(None, one, "") for one in asked]
    while waiting:
        parent, requirement, extra = waiting.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        if name.startswith(OF_CUDA):
            continue
        if parent is not None:
            found[parent].needs.add(name)
        if name not in found:
            said = look(name)
            found[name] = Package(name, said["Version"], said)
        for wanted in ("", *requirement.extras):
            if (name, wanted) not in seen:
                seen.add((name, wanted))
                lines = found[name].metadata.get_all("Requires-Dist", [])
                waiting += [(name, Requirement(line), wanted) for line in lines]
    return dict(sorted(found.items()))


def as_pinned(root: Path = ROOT, look: Lookup = installed) -> tuple[dict[str, Package], dict[str, list[str]]]:
    """All packages of core and extras, which must be those of constraints.txt; and which parts bring each."""
    packages: dict[str, Package] = {}
    brought: dict[str, list[str]] = {}
    pinned = pins(root)
    for part in PARTS:
        for name, package in closure(requirements(part, root), look).items():
            if name not in pinned:
                raise LookupError(f"{name} is needed by {part or 'core'} but not pinned in constraints.txt")
            if Version(package.version).public != Version(pinned[name]).public:  # 2.13.0+cpu is a build of 2.13.0
                raise LookupError(f"{name} {package.version} is installed, constraints.txt says {pinned[name]}")
            known = packages.setdefault(name, Package(name, pinned[name], package.metadata))
            known.needs |= package.needs  # an extra may ask for more of the same package
            brought.setdefault(name, []).append(part or "core")
    return dict(sorted(packages.items())), brought
