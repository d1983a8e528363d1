"""`python -m tools.families bert llama`, or `--all --out docs`: build a tiny model of each type and check it."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import transformers
from tools.families.build_model import model_types
from tools.families.families import counted, read_families, to_dict, write_families
from tools.families.page import families_page
from tools.families.processes import LIMIT, verify_types

from headprune.checkpoint.out_folder import check_writable
from headprune.errors import HeadpruneError, UnknownNameError
from headprune.files import write_text
from headprune.model_checks import Verdict
from headprune.registry import hint

VERSION = transformers.__version__
SHOWN = 20  # so many types are told one by one; of more, only those that fail


def main(words: Sequence[str] | None = None) -> None:
    given = _parser().parse_args(words)
    if given.all == bool(given.types):
        raise HeadpruneError("Name model types (python -m tools.families bert llama), or ask for --all of them.")
    known = model_types()
    for name in given.types:
        if name not in known:
            raise UnknownNameError(f"transformers {VERSION} has no model type '{name}'. {hint(name, known)}")
    wanted = known if given.all else given.types
    found = verified(wanted, given.out, workers=given.workers, limit=given.limit)
    print(json.dumps(to_dict(found, VERSION), indent=1) if given.json else told(found))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.families", description=__doc__)
    parser.add_argument("types", nargs="*", help="model types, as a config names them: bert, llama")
    parser.add_argument("--all", action="store_true", help="every type of the installed transformers")
    parser.add_argument("--out", type=Path, help="folder for families.json and families.md; what is finished is kept")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes at a time")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds that one type may take")
    parser.add_argument("--json", action="store_true", help="print JSON for programs instead of text for people")
    return parser


def verified(types: Sequence[str], out: Path | None, *, workers: int, limit: float) -> dict[str, Verdict]:
    """Every type; with a folder, what an interrupted run had finished there is not done again."""
    unfinished = check_writable(out) / ".families" if out is not None else None
    done = read_families(unfinished, VERSION) if unfinished is not None else {}
    left = [name for name in types if name not in done]

    def finished(name: str, family: Verdict) -> None:
        done[name] = family
        print(f"{len(done)} of {len(types)}: {name}: {family.status}", file=sys.stderr)
        if unfinished is not None:
            write_families(unfinished, done, VERSION)

    verify_types(left, workers=workers, limit=limit, done=finished)
    found = {name: done[name] for name in sorted(types)}
    if out is not None and unfinished is not None:
        write_families(out, found, VERSION)
        write_text(out / "families.md", families_page(found, VERSION))
        shutil.rmtree(unfinished, ignore_errors=True)
    return found


def told(found: Mapping[str, Verdict]) -> str:
    """A line a type, if they are few, and how many there are of each status."""
    lines = []
    for name, family in found.items():
        if len(found) <= SHOWN or family.status == "failed":
            why = f": {family.reason}" if family.reason else f" ({', '.join(family.sites)})"
            lines.append(f"{name}: {family.status}{why}")
    counts = {status: count for status, count in counted(found).items() if count}
    lines.append(f"{len(found)} types: " + ", ".join(f"{count} {status}" for status, count in counts.items()))
    return "\n".join(lines)


if __name__ == "__main__":
    try:
        main()
    except HeadpruneError as error:
        sys.exit(f"error: {error}")
