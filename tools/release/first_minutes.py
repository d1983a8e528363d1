"""A newcomer's first minutes with the built wheel: install, version, help, completion, the README's first example.

Everything happens in a temporary folder with a home of its own. Each step is timed. Needs a package index.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tools.release.contents import pick, version_of
from tools.release.project import ROOT, pins

Step = tuple[str, list[str], str]  # what it is, the command, what its output must hold


def first_example() -> str:
    """The first Python block of README.md."""
    found = re.search(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    assert found, "README.md has no Python block"
    return found[1]


def steps(wheel: Path, folder: Path) -> list[Step]:
    """What a newcomer types, in order."""
    command = f"{folder}/env/bin/headprune"
    pip = [f"{folder}/env/bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    pinned = ["-c", str(ROOT / "constraints.txt")]
    # typer asks shellingham which shell is its parent; the `exit` keeps bash from being replaced by the command.
    bash = ["bash", "-c"]
    installed = f"source {folder}/home/.bashrc; complete -p headprune"
    asked = f'COMP_WORDS="headprune ins" COMP_CWORD=1 _HEADPRUNE_COMPLETE=complete_bash {command}; exit $?'
    return [
        ("make an environment", [sys.executable, "-m", "venv", f"{folder}/env"], ""),
        ("install torch", [*pip, *pinned, f"torch=={pins()['torch']}"], ""),
        ("install headprune[demo]", [*pip, *pinned, f"headprune[demo] @ {wheel.resolve().as_uri()}"], ""),
        ("headprune --version", [command, "--version"], f"headprune {version_of(ROOT)}"),
        ("headprune --help", [command, "--help"], "inspect"),
        ("headprune --show-completion", [*bash, f"{command} --show-completion; exit $?"], "_HEADPRUNE_COMPLETE"),
        ("headprune --install-completion", [*bash, f"{command} --install-completion; exit $?"], "completion installed"),
        ("a new shell knows it", [*bash, installed], "_headprune_completion"),
        ("complete `headprune ins`", [*bash, asked], "inspect"),
        (
            "a short demo",
            [command, "demo", "--train", "600", "--dev", "32", "--epochs", "1"],
            "no training after the cut",
        ),
        ("the README's first example", [f"{folder}/env/bin/python", "-c", first_example()], "price: "),
    ]


def walk(wheel: Path, folder: Path) -> Iterator[tuple[str, float]]:
    """Run the steps; each with its seconds. Stops at the first that fails."""
    (folder / "home").mkdir()
    told = {**os.environ, "HOME": str(folder / "home"), "HF_HUB_OFFLINE": "1"}
    told.pop("PYTHONPATH", None)
    for what, words, wanted in steps(wheel, folder):
        start = time.perf_counter()
        done = subprocess.run(words, cwd=folder, env=told, capture_output=True, text=True)
        if done.returncode or wanted not in done.stdout:
            sys.exit(f"failed: {what} (expected {wanted!r} in the output)\n{done.stdout}{done.stderr}")
        yield what, time.perf_counter() - start


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("dist", type=Path, nargs="?", default=ROOT / "dist")
    wheel, _ = pick(words.parse_args().dist.iterdir())
    with tempfile.TemporaryDirectory() as folder:
        for what, seconds in walk(wheel, Path(folder)):
            print(f"{seconds:7.1f} s  {what}", flush=True)


if __name__ == "__main__":
    main()
