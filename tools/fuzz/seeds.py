"""Valid files for the corpus, made by headprune itself: `python tools/fuzz/seeds.py` writes corpus/TARGET/valid-*."""

from __future__ import annotations

import gzip
import io
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import tools.fuzz.run as run
from tools.fuzz.model_targets import _SHAPE, checkpoints, stored
from tools.fuzz.targets import TARGETS, heads

from headprune.files import dump
from headprune.heads import HeadMap, HeadMask, HeadScores
from headprune.lab.experiments import library, preset_file
from headprune.lab.experiments.runs import plan_run
from headprune.lab.experiments.store import Record
from headprune.tasks.text.symbols import make_symbols

_DEV = {"metric": "accuracy", "score": 0.8, "interval": [0.7, 0.9], "level": 0.95, "examples": 9, "loss": None}
_GATE = {
    "gate": "hard-concrete", "setting": "keep-2", "kept": {"encoder.0": [0, 1]}, "original": {"encoder.0": 4},
    "dev": _DEV, "before": _DEV, "gated": _DEV, "tests": {}, "task": "sst2", "objective": {"weight": 0.1},
    "decided": 1.0, "heads": [4, 2], "out": "model", "components": {"encoder": 2}, "open": {"encoder.0": 2},
    "trajectory": [{"step": 1, "prob_open": {"encoder.0": [0.5] * 4}}],
}  # fmt: skip

PRESET = """\
name = "small"
study = "a study"
line = "Table 1"
what = "what it shows"

[small]
seeds = [1, 2]
inputs = { data = "a folder" }

[[small.steps]]
name = "model"
command = "finetune"
arguments = ["bert"]
options = { data-dir = "{data}", seed = "{seed}" }

[[small.steps]]
name = "cut"
command = "prune"
arguments = ["{model}"]
needs = ["model"]
options = { prune = "{rate}" }
each = { rate = [0.1, 0.5] }

[[small.values]]
name = "score"
step = "cut"
path = "dev/score"
where = { rate = 0.1 }
paper = 0.9

[[small.claims]]
text = "it stays"
value = "score"
is = "above"
than = 0.5
"""


def write(target: str, name: str, content: bytes | str | Any) -> None:
    path = run.CORPUS / target / f"valid-{name}{TARGETS[target].ending}"
    path.parent.mkdir(parents=True, exist_ok=True)
    if not isinstance(content, bytes | str):
        content = json.dumps(content)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def values() -> None:
    mask = HeadMask.full(heads())
    write("mask", "full", mask.to_json())
    write("mask", "empty", HeadMask.empty(heads()).to_json())
    write("mask-dict", "some", {"encoder.0": [0, 1], "cross.0": []})
    rows = {site.id: [0.5 * (1 + head) for head in range(site.num_heads)] for site in heads()}
    scores = HeadScores.from_values(heads(), rows, method="sensitivity", data="dev")
    write("scores", "one", scores.to_json())
    write("scores", "sum", (scores + scores).to_json())
    write("head-map", "one", heads().to_json())
    site = heads().sites[0].to_dict()
    neurons = {**site, "id": "text.neurons.0", "component": "neurons", "tower": "text", "groups": []}
    skipped = [{"path": "a.b", "reason": "not attention"}]
    write("head-map", "neurons", dump("heads", {"sites": [neurons], "skipped": skipped, "model_type": "toy"}))
    for number, text in enumerate((
        "44/4/4", "ES=3,ED=50%,DS=one", "top:1", "odd+bottom:1", "random:50%", "stratified:1", "4,2", "#3",
        "cross=even", "one", "encoder=44",
    )):  # fmt: skip
        write("pattern-text", str(number), text)


def experiments() -> None:
    write("preset", "small", PRESET)
    preset = preset_file.read_preset(PRESET, "small.toml", library.shared_steps())
    plan, trials = plan_run(preset, "small", {"data": "0" * 16})
    notes = {"schema": 1, "runs": [plan.to_dict()]}
    write("run-notes", "small", notes)
    kept, original = {"encoder.0": [0, 1], "encoder.1": []}, {"encoder.0": 2, "encoder.1": 2}
    result = {
        "kept": kept, "original": original, "dev": _DEV, "task": "sst2", "metric": "accuracy", "heads": [4, 2],
        "parameters": [10, 5], "macs": [10, 5], "kv_heads": [4, 2], "removed": {"encoder.1": [0, 1]}, "by": "fisher",
    }  # fmt: skip
    environment = {"python": "3.11", "system": "Linux", "cores": 2, "versions": {"torch": "2"}}
    common: Any = {"seconds": 1.5, "started": "2026-01-01T00:00:00+00:00", "environment": environment}
    records = [Record(trial=t, status="done", result=result, **common) for t in trials]
    write("trial", "done", json.dumps(records[0].to_dict()))
    failed = Record(trial=trials[1], status="failed", error="Traceback\nValueError: x", **common)
    write("trial", "failed", json.dumps(failed.to_dict()))
    write("report", "preset", {"notes": notes, "records": [r.to_dict() for r in (*records[:4], failed)]})
    for name, command, found in _looks():
        trial = {
            "work": "command", "params": {"command": command, "arguments": ["bert"], "options": {}, "values": {}},
            "seed": 1, "needs": {}, "step": command, "label": f"{command} of bert",
        }  # fmt: skip
        if name == "speed":
            trial = {**trial, "work": "speed"}
        record = {"trial": trial, "status": "done", "result": found, "error": "", **common}
        write("report", name, {"notes": {"schema": 1, "runs": []}, "records": [record]})


def _looks() -> list[tuple[str, str, Any]]:
    """Results of commands that look at heads."""
    rows = {"encoder.0": [0.1, 0.2], "encoder.1": [0.3, 0.4]}
    toy = HeadMap(tuple(site for site in heads() if site.component == "encoder"))
    scores = HeadScores.from_values(toy, {"encoder.0": [1, 2, 3, 4], "encoder.1": [1, 2]}, method="fisher", data="dev")
    tested = dict.fromkeys(("score", "p", "p_exact", "flipped", "p_holm", "p_bh"), 0.5)
    ablated = {f"{site}:{n}": {**tested, "change": x} for site, row in rows.items() for n, x in enumerate(row)}
    points = [
        {"share": n / 4, "score": 0.9 - n / 10, "pruned": n, "kept": {"encoder.0": list(range(4 - n))}}
        for n in range(3)
    ]  # fmt: skip
    line = {"order": "random", "metric": "accuracy", "heads": 4, "points": points}
    curve = {"split": "dev", "examples": 9, "seed": 1, "removed": False, "curves": {"random": [line] * 3}}
    relation = {"pairs": 3, "baseline": 0.5, "baseline_offset": -1}
    functions = {
        "model": "bert", "data": "trees", "sentences": 3, "counts": {"positional": 4}, "relations": {"nsubj": relation},
        "heads": {head: {"functions": ["positional"]} for head in ablated},
    }  # fmt: skip
    speed = {
        "speedup": 1.5, "speedup_quartiles": [1.4, 1.6], "control": 1.0, "control_quartiles": [0.9, 1.1],
        "examples_per_second": {"whole": 10.0, "pruned": 15.0},
    }  # fmt: skip
    base = {"base": _DEV, "split": "dev", "all_but_one": False, "seed": 1, "components": {}}
    return [
        ("scores", "score", scores.to_dict()),
        ("ablation", "ablate", {**base, "heads": ablated}), ("curve", "curve", curve),
        ("functions", "functions", functions), ("gates", "gates", {"results": [_GATE, _GATE]}),
        ("speed", "speed", speed),
    ]  # fmt: skip


def boards() -> None:
    cell: dict[str, Any] = {
        "model": "minilm", "data": "sst2", "method": "sensitivity", "recover": "none", "prune": 0.5, "epochs": 0,
        "seed": 1, "metric": "accuracy", "full": 0.9, "score": 0.7, "nll_full": 0.4, "nll": 0.5, "seconds": 7.5,
        "heads": 54, "calibration": 512,
    }  # fmt: skip
    best = {
        **cell, "method": "best", "recover": "least-squares", "score": 0.85, "note": "a note",
        "against": {"change": 0.1, "interval": [0.05, 0.2]},
    }  # fmt: skip
    text = {"model": "smollm2", "data": "wikitext2", "metric": "perplexity", "full": 10.0}
    pair = [{**cell, **text, "score": 30.0}, {**best, **text, "score": 15.0}]
    write("cells", "two", [cell, best])
    write("cells", "four", [cell, {**cell, "seed": 2}, best, *pair])
    family = {"status": "core", "reason": "why", "class": "Bert", "sites": {"encoder": 2}, "checks": {"prune": "pass"}}
    bad = {**family, "status": "failed", "checks": {"prune": "failed: x", "mask": "na"}}
    write("families", "two", {"transformers": "5.0", "types": {"bert": family, "x": bad}})
    write("steps", "two", "\n".join(json.dumps({"step": n, "loss": 1.0}) for n in (1, 2, 2, 3)) + "\n")
    write("parts", "one", dump("part", {"key": "key", "value": [1, 2]}))


def data() -> None:
    rows = [("a good film", 1), ("bad", 0), ("fine", 1)]
    tsv = "sentence\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows)
    write("table-tsv", "header", tsv)
    write("table-tsv", "plain", "".join(f"{text}\t{label}\n" for text, label in rows))
    write("table-csv", "quoted", 'sentence,label\n"a, good ""film""",1\nbad,0\n')
    write("table-csv", "names", "sentence,label\ngood,yes\nbad,no\n")
    write("table-jsonl", "rows", "".join(json.dumps({"sentence": t, "label": n}) + "\n" for t, n in rows))
    write("table-gz", "rows", gzip.compress(tsv.encode(), mtime=0))
    words = (("1", "Dogs", "NOUN", "2", "nsubj"), ("2", "bark", "VERB", "0", "root"), ("3", ".", "PUNCT", "2", "punct"))
    lines = ["\t".join((n, w, w.lower(), tag, "_", "_", head, name, "_", "_")) for n, w, tag, head, name in words]
    write("conllu", "two", "\n".join(["# text = Dogs bark.", *lines, "", *lines, ""]) + "\n")
    write("tags", "names", "".join(
        json.dumps({"tokens": ["Ann", "lives", "here"], "tags": ["B-PER", "O", tag]}) + "\n" for tag in ("O", "B-LOC")
    ))  # fmt: skip
    write("tags", "numbers", '{"tokens": ["a", "b"], "tags": [0, 1]}\n{"tokens": ["c"], "tags": [2]}\n')
    asked = {"question": "Who?", "context": "It was Ann.", "answers": {"text": ["Ann"], "answer_start": [7]}}
    write("questions", "two", "".join(json.dumps({**asked, **more}) + "\n" for more in ({}, {"answers": None})))
    inputs = [{"input_ids": [1, 2, 3], "labels": [0, 1, 0]}, {"input_ids": [4, 5], "labels": [1, 1]}]
    write("encoded-rows", "two", "".join(json.dumps(row) + "\n" for row in inputs))
    write("encoded-rows", "choices", '{"input_ids": [[1, 2], [3, 4]], "labels": 1}\n')
    write("parallel-text", "two", "one\ntwo\n\neins\nzwei")
    write("parallel-gz", "two", gzip.compress(b"one\ntwo\n", mtime=0))
    write("parallel-table", "columns", '{"en": "one", "de": "eins"}\n{"en": "two", "de": "zwei"}\n')
    write("parallel-table", "inside", '{"translation": {"en": "one", "de": "eins"}}\n')
    text = "".join(f"the {n} cat sat on a mat\n" for n in range(20))
    write("running-text", "lines", text)
    write("running-text", "one-line", text.replace("\n", " "))
    write("running-gz", "lines", gzip.compress(text.encode(), mtime=0))
    write("vocabulary-note", "one", {"unit": "words", "size": None, "made_from": "0" * 16})
    folder = run.CORPUS / "vocabulary"
    folder.mkdir(parents=True, exist_ok=True)
    made = make_symbols("a text\nof words\n", "words")
    made.save_pretrained(folder)
    config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    for path in folder.glob("tokenizer*"):
        path.unlink()
    write("vocabulary", "words", config)
    from PIL import Image

    buffer = io.BytesIO()
    Image.new("RGB", (3, 2), (10, 20, 30)).save(buffer, "png")
    write("image", "small", buffer.getvalue())


def models() -> None:
    write("pruned-entry", "bert", stored("pruned", "headprune"))
    write("checkpoint", "bert", stored("pruned", "headprune"))
    write("gates-entry", "bert", stored("gated", "headprune_gates"))
    write("pruned-heads", "some", {"0": [1, 2], "1": [0]})
    write("weights", "bert", (checkpoints() / "pruned" / "model.safetensors").read_bytes())
    write("memory-config", "both", _SHAPE)
    points = [{"kept": {"encoder.0": [0, 1], "encoder.1": [], "decoder.0": [0], "cross.0": [1]}}]
    write("levels", "curve", {"curves": {"random": [{"points": points}], "fisher, encoder": [{"points": points}]}})
    write("levels", "gates", points)
    write("finished-gates", "keep", {"asked": {"setting": "keep-2"}, "result": _GATE})


if __name__ == "__main__":
    for make in (values, experiments, boards, data, models):
        make()
