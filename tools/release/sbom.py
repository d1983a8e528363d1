"""A bill of materials of the wheel: its dependencies as pinned, in CycloneDX 1.6 JSON.

Core dependencies are `required`, those that only extras bring `optional`. The same commit gives the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name
from tools.release.closure import PARTS, Lookup, Package, as_pinned, installed
from tools.release.contents import version_of
from tools.release.licences import allowed, licence_of
from tools.release.project import ROOT, project_table, requirements


def text(wheel: Path, epoch: int, root: Path = ROOT, look: Lookup = installed) -> str:
    """The bill of a wheel whose files are dated `epoch`."""
    packages, brought = as_pinned(root, look)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    table = project_table(root)
    own = _purl(table["name"], version_of(root))
    direct = {canonicalize_name(one.name) for part in PARTS for one in requirements(part, root)}
    document = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, digest)}",  # of the wheel's bytes: repeatable
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(epoch, UTC).isoformat().replace("+00:00", "Z"),
            "component": {
                "type": "library",
                "bom-ref": own,
                "name": table["name"],
                "version": version_of(root),
                "description": table["description"],
                "hashes": [{"alg": "SHA-256", "content": digest}],
                "licenses": [{"expression": table["license"]}],
                "purl": own,
            },
        },
        "components": [
            _component(package, "required" if "core" in brought[name] else "optional")
            for name, package in packages.items()
        ],
        "dependencies": [
            {"ref": own, "dependsOn": sorted(_ref(packages[name]) for name in direct if name in packages)},
            *(
                {"ref": _ref(package), "dependsOn": sorted(_ref(packages[name]) for name in package.needs)}
                for package in packages.values()
            ),
        ],
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _component(package: Package, scope: str) -> dict[str, Any]:
    licence = licence_of(package.metadata)
    # Only what is a proper SPDX expression may stand as one; "BSD", which names no version, is a name.
    proper = package.metadata["License-Expression"] or (allowed(licence) and licence != "BSD")
    said = {"expression": licence} if proper else {"license": {"name": licence or "not stated"}}
    return {
        "type": "library",
        "bom-ref": _ref(package),
        "name": package.name,
        "version": package.version,
        "scope": scope,
        "licenses": [said],
        "purl": _ref(package),
    }


def _ref(package: Package) -> str:
    return _purl(package.name, package.version)


def _purl(name: str, version: str) -> str:
    return f"pkg:pypi/{name}@{version}"
