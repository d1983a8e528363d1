"""headprune beside four peers: the same work, each tool in its own pinned environment, timings turn by turn.

    python benchmarks/peers/run.py --data-dir DATA [--classifier FOLDER]
    python benchmarks/peers/run.py --quick [--only PEER]      a small model and few rounds, into .venv-peers/

Writes benchmarks/results/peers.json and, from it, docs/compare.md. What is measured how: docs/compare.md.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import inputs
import page
from environments import ROOT, TOOLS, VENVS, make
from figures import figures, quality_figures
from talking import Worker

import headprune as hp
from headprune.files import write_text

AGAIN = "headprune again"  # the A/A control
CASES = ("llama", "llama-8-2", "gpt2", "gpt_neox", "phi3", "bart")
CASE_SECONDS = 180


def main() -> None:
    options = _options()
    partial = options.quick or bool(options.only)
    out = options.out or (VENVS / "partial.json" if partial else ROOT / "benchmarks" / "results" / "peers.json")
    names = [name for name in TOOLS if name == "headprune" or not options.only or name in options.only]
    work = VENVS / "work"
    work.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {
        "benchmark": "peers",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "quick": options.quick,
        "rounds": options.rounds,
        "machine": {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count()},
        "tools": {},
    }
    workers = _workers(names, work, result)
    try:
        result["model"] = _timings(workers, work, options.rounds, options.quick, result)
        single = {name: worker for name, worker in workers.items() if name != AGAIN}
        _cases(single, result)
        result["figures"], result["quality"] = figures(result["times"], AGAIN), None
        write_text(out, json.dumps(result, indent=1) + "\n")  # so much is measured, whatever comes
        result["quality"] = _quality(single, work, options)
    finally:
        for worker in workers.values():
            worker.stop()
    write_text(out, json.dumps(result, indent=1) + "\n")
    target = (VENVS / "partial.md") if partial else page.PAGE
    write_text(target, page.page(result))
    print(f"wrote {out} and {target}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, help="timed rounds (3; 2 if quick)")
    parser.add_argument("--quick", action="store_true", help="a small model and few rounds: does it all work?")
    parser.add_argument("--only", action="append", choices=TOOLS[1:], help="only this peer (and headprune)")
    parser.add_argument("--classifier", type=Path, help="MiniLM fine-tuned on SST-2; made if not given")
    data = os.environ.get("HEADPRUNE_DATA")
    parser.add_argument("--data-dir", type=Path, default=data, help="holds sst2/; default: $HEADPRUNE_DATA")
    parser.add_argument("--out", type=Path, help="where the figures go")
    options = parser.parse_args()
    options.rounds = options.rounds or (2 if options.quick else 3)
    return options


def _workers(names: list[str], work: Path, result: dict[str, Any]) -> dict[str, Worker]:
    """Started and asked for their versions; a tool that cannot be installed or imported is left with its error."""
    workers = {}
    for name in names:
        try:
            make(name)
        except subprocess.CalledProcessError as error:
            result["tools"][name] = {"error": f"pip ended with code {error.returncode}"}
            continue
        worker = Worker(name, work / f"{name}.log")
        worker.log.unlink(missing_ok=True)
        result["tools"][name] = worker.ask("about", 300)
        _say(name, "about", result["tools"][name])
        if "error" not in result["tools"][name]:
            workers[name] = worker
    workers[AGAIN] = Worker("headprune", work / "headprune-again.log")
    return workers


def _timings(workers: dict[str, Worker], work: Path, rounds: int, quick: bool, result: dict[str, Any]) -> Any:
    """All tools in every round, the order turning; each warms up on one batch first."""
    checkpoint, data, about = inputs.timing(work, quick)
    names = list(workers)
    for name in names:
        workers[name].ask("load", checkpoint=str(checkpoint), data=str(data))
        workers[name].ask("warm")
    times: dict[str, dict[str, list[float]]] = {}
    result["times"], result["failed"] = times, {}
    for turn in range(rounds):
        for step in range(len(names)):
            name = names[(turn + step) % len(names)]
            for job in ("score", "prune", "score_by_weights", "prune_unchecked", "speed"):
                answer = workers[name].ask(job)
                if "error" in answer:
                    result["failed"].setdefault(name, {})[job] = answer["error"]
                    break
                for key in ("seconds", "whole", "pruned"):
                    if key in answer and not answer.get("with"):
                        kept = job if key == "seconds" else key
                        times.setdefault(kept, {}).setdefault(name, []).append(answer[key])
        print(f"{time.strftime('%H:%M:%S')} round {turn + 1} of {rounds}", flush=True)
    result["facts"] = {name: workers[name].ask("facts") for name in names}
    for name in names:
        _say(name, "facts", result["facts"][name])
    return about


def _cases(workers: dict[str, Worker], result: dict[str, Any]) -> None:
    result["cases"] = {}
    for name, worker in workers.items():
        found = {case: worker.ask("case", CASE_SECONDS, name=case) for case in CASES}
        found["empty"] = worker.ask("empty", CASE_SECONDS)
        result["cases"][name] = found
        for case, answer in found.items():
            _say(name, case, answer)


def _quality(workers: dict[str, Worker], work: Path, options: argparse.Namespace) -> dict[str, Any] | None:
    """None without data."""
    if options.data_dir is None:
        return None
    classifier = options.classifier or _classifier(options.data_dir)
    data = inputs.quality(work, classifier, options.data_dir, options.quick)
    given = {"checkpoint": str(classifier), "data": str(data)}
    whole = workers["headprune"].ask("quality", **given, way="")
    ways = {
        name: {way: worker.ask("quality", **given, way=way) for way in worker.ask("about")["ways"]}
        for name, worker in workers.items()
    }
    for name, answers in ways.items():
        for way, answer in answers.items():
            _say(name, way, answer)
    return quality_figures(whole, ways)


def _classifier(data_dir: Path) -> Path:
    """The checkpoint that all tools start from: about eight minutes on two cores, once."""
    folder = VENVS / "minilm-sst2"
    if not (folder / "config.json").is_file():
        recipe = ["--task", "sst2", "--max-length", "64", "--lr", "1e-4", "--epochs", "3", "--seed", "1", "--bf16"]
        command = [sys.executable, "-m", "headprune", "finetune", hp.demo_model(), *recipe]
        subprocess.run([*map(str, command), "--data-dir", str(data_dir), "--out", str(folder)], check=True)
    return folder


def _say(name: str, what: str, answer: dict[str, Any]) -> None:
    short = {key: value for key, value in answer.items() if key not in ("heads", "right", "ways", "note")}
    print(f"{time.strftime('%H:%M:%S')} {name}: {what}: {json.dumps(short)[:300]}", flush=True)


if __name__ == "__main__":
    main()
