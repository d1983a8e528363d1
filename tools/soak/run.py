"""Hours of sweeps that are killed at random: is anything lost, changed or done twice?

    python tools/soak/run.py --minutes 120 --out FOLDER

Each round runs soak.toml with seeds of its own in a folder of its own, inline or on Ray: undisturbed first, which also
tells how long it takes, then killed several times (SIGKILL, SIGTERM, SIGINT, at a random moment, just after a write or
in the middle of a save, there also twice; on Ray also single workers) and left to finish. Now and then a file of a
checkpoint is cut short, as by a full disk. After every kill: every result is whole and readable, none that was
there before is gone or changed, and the folder is not locked. At the end of a round: every trial is done, and its
result is the one of the run that nobody interrupted. Writes benchmarks/results/soak.json.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from killing import Ended, cut_a_checkpoint, run_to_the_end, start_and_kill

from headprune.lab.experiments.runs import read_runs
from headprune.lab.experiments.store import Store, environment

HERE = Path(__file__).parent
RESULT = HERE.parents[1] / "benchmarks" / "results" / "soak.json"
TIMES = re.compile(r"second|time|minute|speed|host|started|memory|peak")  # what no two runs share
KILLS = 6  # in a round at most
NO_CLUSTER = "No Ray cluster could be started here"
RAY_TAKES = 3  # times as long as inline: a cluster is started first


def write_texts(folder: Path) -> Path:
    """A text with something to learn in it."""
    folder.mkdir(parents=True, exist_ok=True)
    chance = random.Random(0)
    words = ["the", "a", "cat", "dog", "sat", "saw", "mat", "hat", "on", "by", "and", "then", "old", "red", "ran"]
    for part, count in (("train", 6000), ("dev", 300), ("test", 300)):
        (folder / f"{part}.txt").write_text(" ".join(chance.choice(words) for _ in range(count)) + "\n")
    return folder


def sweep_command(folder: Path, texts: Path, seeds: list[int], on_ray: bool) -> list[str]:
    command = [sys.executable, "-m", "headprune", "run", str(HERE / "soak.toml"), "--out", str(folder)]
    command += ["--input", f"text={texts}", "--seeds", ",".join(map(str, seeds))]
    return [*command, "--runner", "ray"] if on_ray else command


def results(folder: Path) -> dict[str, str]:
    """Every stored trial as text; an unreadable one raises a headprune error."""
    store = Store(folder)
    return {record.trial.key(): store.path(record.trial.key()).read_text() for record in store}


def lasting(value: Any) -> Any:
    """A result without times and places."""
    if isinstance(value, dict):
        return {name: lasting(inner) for name, inner in value.items() if not TIMES.search(name)}
    if isinstance(value, list):
        return [lasting(inner) for inner in value]
    return value


def outcome(text: str) -> Any:
    return lasting(json.loads(text)["result"])


class Round:
    """One folder of results, killed and resumed."""

    def __init__(self, number: int, out: Path, texts: Path, on_ray: bool) -> None:
        self.number, self.on_ray = number, on_ray
        self.folder, self.reference = out / f"round-{number}", out / f"reference-{number}"
        self.logs = out / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)
        self.seeds = [1000 + 2 * number, 1001 + 2 * number]
        self.command = sweep_command(self.folder, texts, self.seeds, on_ray)
        self.plain = sweep_command(self.reference, texts, self.seeds, on_ray=False)
        self.chance = random.Random(number)
        self.ways: Counter[str] = Counter()
        self.problems: list[str] = []
        self.known: dict[str, str] = {}

    def run(self, deadline: float) -> None:
        began = time.monotonic()
        ended = run_to_the_end(self.plain, self.logs / f"{self.number}-plain.log")
        if ended.code != 0:
            self.problems.append(f"the undisturbed run ended with {ended.code}: {ended.output[-600:]}")
            return
        longest = (time.monotonic() - began) * (RAY_TAKES if self.on_ray else 1)
        for kill in range(self.chance.randint(2, KILLS)):
            if time.monotonic() > deadline:
                break
            log = self.logs / f"{self.number}-{kill}.log"
            ended = start_and_kill(self.command, self.folder, log, self.chance, on_ray=self.on_ray, longest=longest)
            self.ways[ended.kind] += 1
            if self.has_no_cluster(ended):
                continue
            self.check(ended)
            if ended.kind == "finished":
                break
            if self.chance.random() < 1 / 3 and cut_a_checkpoint(self.folder, self.chance):
                self.ways["checkpoint cut"] += 1
        self.finish()

    def has_no_cluster(self, ended: Ended) -> bool:
        """Whether the sweep did not begin, as it says: on a busy machine Ray may take longer than it gives itself."""
        told = ended.code == 1 and NO_CLUSTER in ended.output
        self.ways["no cluster"] += told
        return told

    def check(self, ended: Ended) -> None:
        """What must hold after every end, however it came."""
        if ended.code not in (None, 0):
            self.problems.append(f"ended with {ended.code}: {ended.output[-600:]}")
        try:
            found = results(self.folder)
            read_runs(Store(self.folder))
            with Store(self.folder).locked():
                pass
        except Exception as error:  # whatever it is, it is what this run looks for
            self.problems.append(f"unreadable after '{ended.kind}': {type(error).__name__}: {error}")
            return
        for key, text in self.known.items():
            if found.get(key) != text:
                self.problems.append(f"trial {key} was {'changed' if key in found else 'lost'} by '{ended.kind}'")
        failed = [json.loads(text)["error"] for text in found.values() if json.loads(text)["status"] != "done"]
        self.problems += [f"a trial failed: {error[-300:]}" for error in failed]
        self.known = found

    def finish(self) -> None:
        """Left alone it ends, and has found what an undisturbed run finds."""
        ended = run_to_the_end(self.command, self.logs / f"{self.number}-last.log")
        for wait in (60, 120, 240):
            if not self.has_no_cluster(ended):
                break
            time.sleep(wait)
            ended = run_to_the_end(self.command, self.logs / f"{self.number}-last.log")
        self.check(ended)
        expected = results(self.reference)
        if set(expected) != set(self.known):
            self.problems.append(f"{len(expected)} trials were expected, {len(self.known)} are there")
        for key in expected.keys() & self.known.keys():
            if outcome(expected[key]) != outcome(self.known[key]):
                label = json.loads(expected[key])["trial"]["label"]
                self.problems.append(f"trial {key} ({label}) has another result than undisturbed")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--out", type=Path, required=True, help="a folder for the runs; empty at the start")
    parser.add_argument("--ray-every", type=int, default=4, help="every so many rounds on Ray; 0 for never")
    parser.add_argument("--result", type=Path, default=RESULT)
    parser.add_argument("--note", action="append", default=[], help="a sentence for the page, such as what else ran")
    given = parser.parse_args()
    began, rounds = time.monotonic(), []
    ways: Counter[str] = Counter()
    texts, trials, problems = write_texts(given.out / "text"), 0, []
    while time.monotonic() - began < 60 * given.minutes:
        number = len(rounds)
        on_ray = bool(given.ray_every) and number % given.ray_every == given.ray_every - 1
        one = Round(number, given.out, texts, on_ray)
        one.run(began + 60 * given.minutes)
        rounds.append(on_ray)
        ways += one.ways
        trials += len(one.known)
        problems += [f"round {number}: {problem}" for problem in one.problems]
        told = {
            "date": datetime.now(UTC).date().isoformat(),
            "command": f"python tools/soak/run.py --minutes {given.minutes:g} --out FOLDER",
            "minutes": round((time.monotonic() - began) / 60, 1),
            "rounds": len(rounds), "rounds_on_ray": sum(rounds), "trials": trials,
            "kills": sum(count for way, count in ways.items() if "killed" in way), "ways": dict(ways),
            "problems": problems, "notes": given.note,
            "environment": {k: v for k, v in environment().items() if k != "host"},
        }  # fmt: skip
        given.result.write_text(json.dumps(told, indent=1) + "\n")
        print(f"{told['minutes']} min: {len(rounds)} rounds, {trials} trials, {told['kills']} kills, "
              f"{len(problems)} problems", flush=True)  # fmt: skip
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
