"""Constraints that hold every dependency at the oldest version that pyproject.toml allows. Used by `make test-oldest`.

    python -m tools.release.oldest --keep-torch > oldest.txt && pip install -c oldest.txt -e .

A range is honest only if its lower end works.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version
from tools.release.project import ROOT, pins, requirements


def lower_bound(asked: Requirement) -> Version:
    """The oldest version that a requirement allows."""
    bounds = [Version(one.version) for one in asked.specifier if one.operator in (">=", "==", "~=")]
    if not bounds:
        raise ValueError(f"pyproject.toml states no lower bound for {asked.name}: write {asked.name}>=VERSION")
    return max(bounds)


def constraints(*extras: str, keep_torch: bool = False, root: Path = ROOT) -> str:
    """A constraints file of lower bounds, of the core and of extras.

    `keep_torch` takes torch from constraints.txt: older builds of it are gigabytes, and tests have one torch.
    """
    oldest: dict[str, Version] = {}
    for part in (None, *extras):
        for asked in requirements(part, root):
            oldest[asked.name] = max(lower_bound(asked), oldest.get(asked.name, Version("0")))
    if keep_torch:
        oldest["torch"] = Version(pins(root)["torch"])
    return "".join(f"{name}=={version}\n" for name, version in sorted(oldest.items()))


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("extras", nargs="*", help="extras whose dependencies are held too")
    words.add_argument("--keep-torch", action="store_true", help="torch as in constraints.txt")
    told = words.parse_args()
    print(constraints(*told.extras, keep_torch=told.keep_torch), end="")


if __name__ == "__main__":
    main()
