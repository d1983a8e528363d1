"""An environment for every tool: Python's venv, torch by its pinned build first, then the pinned packages."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
VENVS = ROOT / ".venv-peers"
TORCH = "torch==2.13.0"
TOOLS = ("headprune", "transformers", "textpruner", "torch-pruning", "slimformers")


def python_of(name: str) -> Path:
    """The interpreter of a tool; headprune's is the one that runs this."""
    return Path(sys.executable) if name == "headprune" else VENVS / name / "bin" / "python"


def make(name: str) -> None:
    """Make a tool's environment, unless it is there and its requirements have not changed."""
    if name == "headprune":
        return
    requirements, python = HERE / name / "requirements.txt", python_of(name)
    stamp = VENVS / name / "requirements.stamp"
    if stamp.is_file() and stamp.read_text() == requirements.read_text():
        return
    began = time.perf_counter()
    if not python.is_file():
        subprocess.run([sys.executable, "-m", "venv", str(VENVS / name)], check=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, TORCH], check=True)
    # Every package is in the list, so that none is looked for: TextPruner asks for a numpy that has no wheel.
    subprocess.run([*pip, "--no-deps", "-r", str(requirements)], check=True)
    stamp.write_text(requirements.read_text())
    print(f"{name}: environment made in {time.perf_counter() - began:.0f} s", flush=True)
