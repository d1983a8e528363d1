"""axe-core for the tests in a browser: one file out of a pinned wheel that carries it, checked by its hash.
Neither node nor the wheel's own dependencies are needed."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

# axe-core 4.12.1 (MPL-2.0) inside; only tests use it.
WHEEL = "axe-playwright-python==0.1.8"
SHA256 = "fdd263c998388f1a8e67cad02677e612d946248bd44d163be5e8650ea31f95f8"
INSIDE = "axe_playwright_python/axe.min.js"


def fetch(target: Path) -> Path:
    """The script, unless it is there already."""
    if not target.is_file():
        with tempfile.TemporaryDirectory() as folder:
            wanted = Path(folder, "axe.txt")
            wanted.write_text(f"{WHEEL} --hash=sha256:{SHA256}\n", encoding="utf-8")
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
            subprocess.run([*pip, "--require-hashes", "-r", str(wanted), "-d", folder], check=True)
            with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as wheel:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(wheel.read(INSIDE))
    return target


if __name__ == "__main__":
    print(fetch(Path(sys.argv[1])))
