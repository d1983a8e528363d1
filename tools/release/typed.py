"""Do the types reach a user? mypy --strict on tools/release/user.py against the installed wheel.

The wheel goes into a clean environment that sees the other packages of this one, but not its editable headprune.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

from tools.release.contents import pick
from tools.release.project import ROOT

USER = Path(__file__).with_name("user.py")


def environment(folder: Path, wheel: Path) -> Path:
    """The Python of a new environment with the wheel, and this one's packages behind it."""
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    words = ["-m", "pip", "--python", str(python), "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([sys.executable, *words, "--no-index", "--no-deps", str(wheel)], check=True)
    (own,) = (folder / "lib").glob("python*/site-packages")
    # A .pth file in a folder that a .pth file names is not read: the editable headprune stays out.
    (own / "others.pth").write_text("\n".join(path for path in sys.path if path.endswith("-packages")) + "\n")
    where = subprocess.run(
        [python, "-c", "import headprune; print(headprune.__file__)"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    if not Path(where).is_relative_to(folder):
        raise RuntimeError(f"the wheel was installed into {folder}, but headprune comes from {where}")
    return python


def public_names(wheel: Path) -> list[str]:
    """What `headprune.__all__` lists, read from the wheel's file."""
    with zipfile.ZipFile(wheel) as archive:
        tree = ast.parse(archive.read("headprune/__init__.py"))
    values = {ast.unparse(node.targets[0]): node.value for node in tree.body if isinstance(node, ast.Assign)}
    return ["__version__", *sorted([*ast.literal_eval(values["_PUBLIC"]), *ast.literal_eval(values["_MODULES"])])]


def problems(wheel: Path) -> list[str]:
    """What mypy says against the user's script, and public names without a type."""
    names = public_names(wheel)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary).resolve()
        python = environment(folder / "env", wheel)
        every = folder / "every_name.py"
        every.write_text("import headprune as hp\n" + "".join(f"reveal_type(hp.{name})\n" for name in names))
        options = [
            "--strict",
            "--config-file=",
            "--cache-dir",
            str(folder / "cache"),
            "--python-executable",
            str(python),
        ]
        words = [sys.executable, "-m", "mypy", *options, str(USER), str(every)]
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    wrong = [line for line in lines if ": error: " in line]
    told = {
        int(found[1]): found[2]
        for line in lines
        if (found := re.match(r'.*every_name\.py:(\d+): note: Revealed type is "(.*)"', line))
    }
    for number, name in enumerate(names, start=2):
        if told.get(number, "Any") == "Any":
            wrong.append(f"hp.{name} has no type")
    if done.returncode and not wrong:
        wrong.append(f"mypy failed: {done.stdout}{done.stderr}")
    return wrong


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("dist", type=Path, nargs="?", default=ROOT / "dist")
    wheel, _ = pick(words.parse_args().dist.iterdir())
    if wrong := problems(wheel):
        sys.exit("\n".join(wrong))
    print(f"{wheel.name}: {len(public_names(wheel))} public names have types; the user's script passes mypy --strict")


if __name__ == "__main__":
    main()
