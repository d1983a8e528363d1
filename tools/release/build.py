"""Build wheel and sdist of the last commit into dist/, twice, and compare byte for byte. Run by `make release`.

With them come the list of dependencies (CycloneDX) and SHA256SUMS, which `sha256sum -c` reads.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # so that `python tools/release/build.py` works, too

from tools.release import contents, licences, sbom
from tools.release.project import ROOT, commit_time, export, git, pins, project_table


def build(tree: Path, out: Path, epoch: int, *kinds: str, **changed: str) -> None:
    """Wheel and sdist of a tree, with the build backend of this environment, dated `epoch`."""
    pinned, found = pins(tree)["hatchling"], importlib.metadata.version("hatchling")
    if found != pinned:
        sys.exit(f"hatchling {found} is installed, constraints.txt says {pinned}: run `make install`")
    told = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch), **changed}
    kinds = kinds or ("--wheel", "--sdist")
    words = [sys.executable, "-m", "build", "--no-isolation", *kinds, "--outdir", str(out), str(tree)]
    done = subprocess.run(words, cwd=tree.parent, env=told, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"the build failed:\n{done.stdout}{done.stderr}")


def build_twice(work: Path, root: Path = ROOT) -> list[Path]:
    """Two builds of the last commit that must be the same; the first one's files."""
    epoch = commit_time(root)
    first, second = work / "first", work / "second"
    build(export(work / "a" / "tree", root), first, epoch)
    # What could leak into files but must not: the folder, the time zone, the order of sets.
    build(export(work / "another" / "folder", root), second, epoch, TZ="Asia/Tokyo", PYTHONHASHSEED="1")
    files = sorted(first.iterdir())
    if [path.name for path in files] != sorted(path.name for path in second.iterdir()):
        sys.exit("two builds of one commit made files of different names")
    for path in files:
        if path.read_bytes() != (second / path.name).read_bytes():
            sys.exit(f"two builds of one commit differ: {path.name}")
    return files


def checksums(files: list[Path]) -> str:
    """Lines as `sha256sum` writes them."""
    return "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(files))


def release(out: Path, root: Path = ROOT) -> list[Path]:
    """Build, check, and put the files of a release into a folder; nothing is written there unless all holds."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        files, tree = build_twice(work, root), work / "a" / "tree"
        wheel, sdist = contents.pick(files)
        wrong = [*contents.problems(wheel, sdist, tree), *licences.refused(licences.table())]
        again = work / "from-sdist"
        build(contents.unpack(sdist, work / "unpacked"), again, commit_time(root), "--wheel")
        if (again / wheel.name).read_bytes() != wheel.read_bytes():
            wrong.append("a wheel built from the sdist is not the wheel built from the tree")
        if wrong:
            sys.exit("\n".join(["not released:", *wrong]))
        bill = work / f"{project_table(tree)['name']}-{contents.version_of(tree)}.cdx.json"
        bill.write_text(sbom.text(wheel, commit_time(root), tree))
        files = [*files, bill]
        sums = work / "SHA256SUMS"
        sums.write_text(checksums(files))
        out.mkdir(parents=True, exist_ok=True)
        for old in out.glob(f"{project_table(tree)['name']}-*"):  # SHA256SUMS speaks of one release
            old.unlink()
        return [Path(shutil.copy2(path, out)) for path in (*files, sums)]


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--out", type=Path, default=ROOT / "dist")
    out = words.parse_args().out
    if git("status", "--porcelain"):
        print("note: the release is of the last commit; what is not committed is not in it")
    for path in release(out):
        print(f"{path.stat().st_size:>9,} bytes  {path.name}")
    print("built twice, the same bytes; contents and licences as they should be; the sdist builds the same wheel")


if __name__ == "__main__":
    main()
