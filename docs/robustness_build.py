"""Write docs/robustness.md from the stored figures of the fuzz and soak runs. Run by `make docs`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE.parent / "benchmarks" / "results"
NOTE = "<!-- Written by `make docs` from benchmarks/results/fuzz.json, interrupted.json and soak.json. -->"


def fuzzed(found: dict[str, Any]) -> list[str]:
    rows = [
        f"| {name} | {one['inputs']:,} | {one['loaded']:,} | {one['slowest']:.2f} |"
        for name, one in sorted(found["targets"].items())
    ]
    findings = [f"- {one['target']}: {one['what']}" for one in found["findings"]]
    return [
        "## Files that were damaged or made up",
        "",
        "Every loader is given valid files of which parts were replaced by odd ones: wrong types, huge numbers, names "
        "that lead elsewhere, deep nesting, half a file, random bytes. It may load them or refuse them with an "
        "error of ours. Anything else is a finding: another exception, a file touched elsewhere, code that runs, a "
        "connection, more than its time or memory. Inputs that once showed a fault are kept in "
        "`tools/fuzz/corpus/`, and every test run loads them again.",
        "",
        f"{found['date']}, `{found['command']}`: {found['inputs']:,} inputs in {found['seconds'] / 60:.0f} minutes, "
        f"{len(found['findings'])} findings.",
        "",
        *([*findings, ""] if findings else []),
        "| loader | inputs | of these loaded | slowest, seconds |",
        "|---|---:|---:|---:|",
        *rows,
    ]


def soaked(found: dict[str, Any]) -> list[str]:
    ways = found["ways"]
    kills = {way: count for way, count in sorted(ways.items()) if "killed" in way}
    moments = [
        "at random moments",
        "just after a write",
        *(["in the middle of a save"] if "killed in a save" in ways else []),
    ]
    inline = ", inline and on Ray," if found["rounds_on_ray"] else ""
    on_ray = ", on Ray single workers too" if found["rounds_on_ray"] else ""
    cut = (
        "Now and then a file of a checkpoint is cut short as well, as by a full disk. "
        if "checkpoint cut" in ways
        else ""
    )
    done = [f"{sum(kills.values())} kills ({', '.join(f'{way} {count}' for way, count in kills.items())})"]
    done += [f"{ways['checkpoint cut']} checkpoints cut"] if cut else []
    done += [f"{ways['no cluster']} starts for which the busy machine had no cluster"] if "no cluster" in ways else []
    problems = [f"- {text}" for text in found["problems"]]
    return [
        "## Sweeps that were killed",
        "",
        f"Sweeps of real commands (train, score, ablate, prune, fine-tune, gates){inline} are killed by SIGKILL, "
        f"SIGTERM and SIGINT {', '.join(moments[:-1])} or {moments[-1]}{on_ray}, and started again. {cut}After every "
        "kill all results must be readable, none lost or changed, and the folder free. When a sweep is done, every "
        "result must be that of a sweep that nobody interrupted.",
        "",
        f"{found['date']}, `{found['command']}`: {found['minutes']:.0f} minutes, {found['rounds']} sweeps "
        f"({found['rounds_on_ray']} on Ray), {found['trials']} trials, {', '.join(done)}, "
        f"{len(found['problems'])} problems.",
        *(["", *problems] if problems else []),
        *(["", "What else is known:", "", *(f"- {text}" for text in found["notes"])] if found.get("notes") else []),
    ]


def interrupted(found: dict[str, Any]) -> list[str]:
    kinds = ", ".join(f"{kind} {count}" for kind, count in found["kinds"].items())
    return [
        "## Saves that were interrupted",
        "",
        "A save of a pruned model over an older one is stopped before and inside each of its file-system events: by "
        "one Ctrl-C, by two, by `kill -9`, by a full disk. Whoever looks next must find the old model or the new one, "
        "byte for byte, with its card, tokenizer and `prune.json`, and nothing else. Files of the newest checkpoint "
        "of a training are cut to nothing, a half and a little less: the run must go on from the one before.",
        "",
        f"{found['date']}, `{found['command']}`: {len(found['losses'])} losses in {found['faults']} faults "
        f"({kinds}; {found['events']} events a save).",
        *(f"- {text}" for text in found["losses"]),
    ]


def pages() -> dict[Path, str]:
    names = ("fuzz", "interrupted", "soak")
    fuzz, stopped, soak = (json.loads((RESULTS / f"{name}.json").read_text()) for name in names)
    intro = "What headprune does with bad files and sudden deaths, measured. `make fuzz` and `make soak` repeat it."
    lines = [NOTE, "# Robustness", "", intro, "", *fuzzed(fuzz), "", *interrupted(stopped), "", *soaked(soak)]
    return {HERE / "robustness.md": "\n".join(lines) + "\n"}


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text)
