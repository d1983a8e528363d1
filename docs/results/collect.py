"""Gather what the scripts here left into docs/results/data.

collect.py classifiers RUNS     a folder of folders TASK-SEED, by classifier.sh
collect.py gates RUNS           a folder of folders sst2-SEED, by gates.sh
collect.py functions FOLDER     what `headprune functions` wrote
collect.py translation RUNS     a folder of folders multi30k-SEED, by translation.sh; what is not finished is left out
collect.py allattention RUNS    a folder of folders books-SEED, by allattention.sh; what is not finished is left out
collect.py experiments RUNS     a folder that `headprune run` wrote: its trials, without what they wrote
"""

from __future__ import annotations

import json
import platform
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"


def gathered(run: Path) -> dict[str, Any]:
    """The results of one seed, without the lists of kept heads at every point (they follow from the scores)."""
    curve = _read(run / "curve" / "curve.json")
    for runs in curve["curves"].values():
        for line in runs:
            for point in line["points"]:
                del point["kept"]
    seconds = [json.loads(line) for line in (run / "seconds.jsonl").read_text().splitlines()]
    pruned = _read(run / "prune.json")
    return {
        "finetune": _read(run / "model" / "finetune.json"),
        "scores": _read(run / "scores" / "scores.json")["scores"],
        "ablation": _read(run / "ablation" / "ablation.json"),
        "curve": curve,
        "prune": {name: pruned[name] for name in ("heads", "removed", "budget", "difference")},
        "seconds": {entry["step"]: entry["seconds"] for entry in seconds},
        "versions": _versions(),
    }


def gathered_gates(run: Path) -> dict[str, Any]:
    """Gates with a target, and Michel et al.'s order at the same number of heads, of one seed."""
    wanted = ("setting", "heads", "before", "gated", "dev", "decided", "open", "kept", "objective", "epochs",
              "learning_rate", "gate_lr")  # fmt: skip
    gates = [{name: result[name] for name in wanted} for result in _read(run / "gates" / "gates.json")]
    michel = {share: _read(run / f"michel-{share}" / "finetune.json") for share in ("50", "75")}
    return {"gates": gates, "michel": michel, "versions": _versions()}


def gathered_functions(folder: Path) -> dict[str, Any]:
    """Without the model's path, which is a machine's."""
    found = _read(folder / "functions.json")
    return {name: value for name, value in found.items() if name != "model"} | {"versions": _versions()}


def gathered_translation(run: Path) -> dict[str, Any]:
    """As much of the translation study as is there."""
    curves = {}
    for name in ("curve", "components", "dynamics"):
        if (run / name / "curve.json").is_file():
            found = _read(run / name / "curve.json")
            curves[name] = {
                "examples": found["examples"],
                "curves": {
                    order: [[[point["share"], point["score"]] for point in line["points"]] for line in lines]
                    for order, lines in found["curves"].items()
                },
            }
    wanted = ("setting", "heads", "before", "gated", "dev", "tests", "open", "components", "kept", "epochs")
    gates = {
        name: [{key: result[key] for key in wanted} for result in _read(run / f"gates-{name}" / "gates.json")]
        for name in ("encoder", "all")
        if (run / f"gates-{name}" / "gates.json").is_file()
    }
    parts = {
        name: _read(run / name / "ablation.json")
        for name in ("ablation", "alone")
        if (run / name / "ablation.json").is_file()
    }
    trained = {"model": "train-mt.json", "scratch": "train-mt.json", "random": "finetune.json",
               "layers": "finetune.json", "triples": "finetune.json"}  # fmt: skip
    runs = {
        kind: {
            path.parent.name: _read(path) for path in sorted((run / kind).rglob(file)) if "checkpoints" not in str(path)
        }
        for kind, file in trained.items()
    }
    return {
        **parts,
        "curves": curves,
        "gates": gates,
        **{kind: found for kind, found in runs.items() if kind != "model"},
        "model": runs["model"]["model"],
        "seconds": _seconds(run),
        "versions": _versions("sacrebleu"),
    }


def gathered_allattention(run: Path) -> dict[str, Any]:
    """As much of the All-attention study as is there."""
    wanted = ("setting", "heads", "before", "gated", "dev", "tests", "kept", "objective", "gate_lr", "trajectory")
    gates = {}
    for path in sorted(run.glob("*/gates.json")):
        (result,) = _read(path)
        kept = {name: result[name] for name in wanted} | {"steps": result["updates"]}
        kept["trajectory"] = [
            {name: entry[name] for name in ("step", "task_loss", "open_heads")} for entry in result["trajectory"]
        ]
        gates[path.parent.name] = kept
    sweep = {name.removeprefix("sweep-"): found for name, found in gates.items() if name.startswith("sweep-")}
    longer = run / "longer" / "finetune.json"
    rivals = {
        path.parent.name.removeprefix("rival-"): _read(path) for path in sorted(run.glob("rival-*/train-lm.json"))
    }
    return {
        "base": _read(run / "base" / "train-lm.json"),
        "longer": _read(longer) if longer.is_file() else None,
        "sweep": sweep,
        "techniques": {name: found for name, found in gates.items() if not name.startswith("sweep-")},
        "rivals": rivals,
        "strongest": max(sweep, key=float, default=""),
        "seconds": _seconds(run),
        "versions": _versions("pytorch_optimizer"),
    }


def _seconds(run: Path) -> dict[str, int]:
    seconds: dict[str, int] = {}
    for line in (run / "seconds.jsonl").read_text().splitlines():  # a step that was stopped has several
        entry = json.loads(line)
        seconds[entry["step"]] = seconds.get(entry["step"], 0) + entry["seconds"]
    return seconds


def _joined(stored: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """A study may be done in parts, also on several machines, as long as they have the same model."""
    if stored["model"]["dev"] != found["model"]["dev"]:
        return found
    parts = ("curves", "gates", "scratch", "random", "layers", "triples", "seconds")
    return {**stored, **found, **{name: {**stored[name], **found[name]} for name in parts}}


def _versions(*more: str) -> dict[str, str]:
    return {name: version(name) for name in ("torch", "transformers", "numpy", "scipy", *more)} | {
        "python": platform.python_version()
    }


def _read(path: Path) -> Any:
    return json.loads(path.read_text())


def _write(place: Path, content: Any) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(json.dumps(content, separators=(",", ":")) + "\n")


def gather_experiments(runs: Path) -> None:
    """Finished trials and the notes of what was run, as a folder that `headprune report` reads. Without host names."""
    target = DATA / "experiments"
    for path in sorted((runs / "trials").glob("*.json")):
        record = _read(path)
        if record["status"] == "done":
            record["environment"].pop("host", None)
            _write(target / "trials" / path.name, record)
    _write(target / "run.json", _read(runs / "run.json"))


def main(kind: str, runs: Path) -> None:
    if kind == "experiments":
        gather_experiments(runs)
    if kind == "functions":
        _write(DATA / "functions-minilm" / "all.json", gathered_functions(runs))
    if kind == "translation":
        for run in sorted(runs.glob("multi30k-*")):
            place = DATA / "multi30k" / f"seed-{run.name.rsplit('-', 1)[1]}.json"
            found = gathered_translation(run)
            _write(place, _joined(_read(place), found) if place.is_file() else found)
    if kind == "allattention":
        for run in sorted(runs.glob("books-*")):
            if (run / "base" / "train-lm.json").is_file():
                _write(DATA / "allattention" / f"seed-{run.name.rsplit('-', 1)[1]}.json", gathered_allattention(run))
    for run in sorted(runs.glob("*-*")) if kind in ("classifiers", "gates") else ():
        task, seed = run.name.rsplit("-", 1)
        last = run / "prune.json" if kind == "classifiers" else run / "michel-75" / "finetune.json"
        if not last.is_file() or not last.stat().st_size:
            continue  # not finished
        name = f"{task}-minilm" if kind == "classifiers" else f"gates-{task}"
        found = gathered(run) if kind == "classifiers" else gathered_gates(run)
        _write(DATA / name / f"seed-{seed}.json", found)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
