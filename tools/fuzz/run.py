"""Fuzz the loaders: `python tools/fuzz/run.py --inputs 100000`. Findings go to tools/fuzz/corpus/
and benchmarks/results/fuzz.json.

Each input is a valid file with parts replaced by odd ones (`altering`), loaded in a folder of its own while `watching`
looks. A finding is whatever is no headprune error: another exception, a file touched elsewhere, code that runs, too
much time or memory. Same seed, same inputs.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib.metadata
import json
import math
import os
import platform
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:  # run as a script, `fuzz` is not importable
    sys.path.insert(0, str(ROOT))
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
sys.dont_write_bytecode = True  # or a late import would write outside

import tools.fuzz.data_targets  # noqa: E402
import tools.fuzz.model_targets  # noqa: E402, F401
from hypothesis import HealthCheck, Phase, given, settings  # noqa: E402
from hypothesis import seed as with_seed  # noqa: E402
from tools.fuzz.altering import altered  # noqa: E402
from tools.fuzz.targets import TARGETS, Target  # noqa: E402
from tools.fuzz.watching import TimeLimitError, Watch  # noqa: E402

from headprune.errors import HeadpruneError  # noqa: E402

CORPUS = Path(__file__).parent / "corpus"
AT_ONCE = 500  # inputs of one Hypothesis run; more would only make its memory of them large


@dataclass
class Finding:
    """One thing that is wrong, with the smallest input that showed it."""

    target: str
    what: str
    where: str
    data: bytes
    count: int = 1

    def to_dict(self) -> dict[str, Any]:
        return {
            "target": self.target, "what": self.what, "where": self.where, "count": self.count,
            "file": f"tools/fuzz/corpus/{self.target}/{self.name()}",
        }  # fmt: skip

    def name(self) -> str:
        return f"found-{sha256(self.data).hexdigest()[:12]}{TARGETS[self.target].ending}"


@dataclass
class Done:
    """What came of one target."""

    inputs: int = 0
    loaded: int = 0  # the others were refused with a headprune error
    seconds: float = 0.0
    slowest: float = 0.0
    findings: dict[str, Finding] = field(default_factory=dict)

    def add(self, finding: Finding) -> None:
        known = self.findings.setdefault(f"{finding.what.partition(':')[0]} {finding.where}", finding)
        if known is not finding:
            known.count += 1
            if len(finding.data) < len(known.data):
                known.data, known.what = finding.data, finding.what


def seeds_of(name: str) -> list[bytes]:
    """Every file kept for a target: valid ones, and those that were findings once."""
    return [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]


def to_alter(name: str) -> list[bytes]:
    """The same, with valid files so often that two of three inputs are made from one: what was refused is refused
    again, whatever else is changed."""
    files = sorted((CORPUS / name).iterdir())
    valid = [path.read_bytes() for path in files if path.name.startswith("valid-")]
    others = [path.read_bytes() for path in files if not path.name.startswith("valid-")]
    return valid * max(1, math.ceil(2 * len(others) / len(valid))) + others


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder for inputs, deep enough that ../../x is outside of it and still ours."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # files that live for milliseconds
    with tempfile.TemporaryDirectory(prefix="headprune-fuzz-", dir=memory) as root:
        yield Path(root) / "a" / "b" / "input"


def tried(name: str, data: bytes, folder: Path) -> tuple[str, str, str]:
    """Load one input: ("loaded" | "refused" | "finding", what, where)."""
    one: Target = TARGETS[name]
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    outcome, what, where = "loaded", "", ""
    try:
        with Watch(folder, one.seconds) as watch:
            one.load(data, folder)
    except HeadpruneError as error:
        outcome = "refused"
        if not str(error).strip():
            outcome, what, where = "finding", "an error without a message", _place(error)
    except TimeLimitError as error:
        outcome, what, where = "finding", "time", _place(error)
    except (Exception, RecursionError) as error:
        outcome, what, where = "finding", f"{type(error).__name__}: {str(error)[:200]}", _place(error)
    if watch.seen and what != "time":
        outcome, what, where = "finding", watch.seen[0], where or watch.seen[0].partition(":")[0]
    return outcome, what, where


def _place(error: BaseException) -> str:
    """The innermost line of headprune's."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "headprune" in frame.filename and "fuzz" not in Path(frame.filename).parts]
    frame = (ours or frames)[-1]
    return f"{Path(frame.filename).name}:{frame.lineno} {frame.name}"


def fuzz(name: str, inputs: int, seed: int) -> Done:
    """So many altered inputs for one target, after all that are kept."""
    done, kept = Done(), to_alter(name)
    with scratch() as folder:
        for data in kept[:3]:  # what is loaded late or cached is no part of an input's time
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tried(name, data, folder)
        start = time.monotonic()

        def one(data: bytes) -> None:
            if done.inputs >= inputs:
                return
            begun = time.monotonic()
            outcome, what, where = tried(name, data, folder)
            done.slowest = max(done.slowest, time.monotonic() - begun)
            done.inputs += 1
            done.loaded += outcome == "loaded"
            if outcome == "finding":
                done.add(Finding(name, what, where, data))

        round_number = 0
        while done.inputs < inputs:
            run = settings(
                max_examples=min(AT_ONCE, inputs - done.inputs), phases=[Phase.generate], database=None, deadline=None,
                suppress_health_check=list(HealthCheck),
            )(with_seed(f"{seed} {name} {round_number}")(given(altered(TARGETS[name].kind, kept))(one)))  # fmt: skip
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                run()
            round_number += 1
        done.seconds = time.monotonic() - start
    return done


def shares(inputs: int, names: list[str]) -> dict[str, int]:
    """How many inputs each target gets."""
    whole = sum(TARGETS[name].share for name in names)
    found = {name: int(inputs * TARGETS[name].share / whole) for name in names}
    found[names[0]] += inputs - sum(found.values())
    return found


def keep(finding: Finding) -> None:
    """As a file of the corpus, which the tests load from now on."""
    path = CORPUS / finding.target / finding.name()
    path.write_bytes(finding.data)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000, help="of all targets together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", action="append", choices=sorted(TARGETS), help="only this one; repeatable")
    parser.add_argument("--no-record", action="store_true", help="write no results and keep no findings")
    asked = parser.parse_args()
    faulthandler.enable()
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    transformers.logging.disable_progress_bar()
    names = asked.target or sorted(TARGETS)
    start, results = time.monotonic(), {}
    for name, count in shares(asked.inputs, names).items():
        results[name] = found = fuzz(name, count, asked.seed)
        print(
            f"{name}: {found.inputs} inputs, {found.loaded} loaded, {found.seconds:.0f} s, slowest {found.slowest:.2f}"
            f" s, {len(found.findings)} findings", flush=True,
        )  # fmt: skip
        for finding in found.findings.values():
            print(f"  {finding.what} [{finding.where}] x{finding.count}, {len(finding.data)} bytes", flush=True)
            if not asked.no_record:
                keep(finding)
    findings = [finding for found in results.values() for finding in found.findings.values()]
    total = sum(found.inputs for found in results.values())
    print(f"{total} inputs, {len(findings)} findings, {time.monotonic() - start:.0f} s")
    if not asked.no_record and asked.target is None:
        write_results(results, asked, time.monotonic() - start)
    return 1 if findings else 0


def write_results(results: dict[str, Done], asked: argparse.Namespace, seconds: float) -> None:
    packages = ("headprune", "hypothesis", "torch", "transformers", "safetensors", "numpy")
    content = {
        "date": datetime.now(UTC).date().isoformat(),
        "command": f"python tools/fuzz/run.py --inputs {asked.inputs} --seed {asked.seed}",
        "versions": {
            "python": platform.python_version(), **{name: importlib.metadata.version(name) for name in packages}
        },
        "inputs": sum(found.inputs for found in results.values()),
        "seconds": round(seconds, 1),
        "targets": {
            name: {
                "inputs": found.inputs, "loaded": found.loaded, "seconds": round(found.seconds, 1),
                "slowest": round(found.slowest, 3),
            }
            for name, found in results.items()
        },
        "findings": [finding.to_dict() for found in results.values() for finding in found.findings.values()],
    }  # fmt: skip
    (ROOT / "benchmarks" / "results" / "fuzz.json").write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
