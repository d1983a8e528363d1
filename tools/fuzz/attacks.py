"""Files that somebody would write on purpose: short ones that ask for much, and names that lead elsewhere.

`python tools/fuzz/attacks.py` writes tools/fuzz/corpus/TARGET/attack-*. Changes at random hardly ever
make one of these.
"""

from __future__ import annotations

import copy
import json
import random
import struct
import sys
import zlib
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tools.fuzz.run import CORPUS, seeds_of
from tools.fuzz.seeds import PRESET
from tools.fuzz.targets import TARGETS

from headprune.lab.experiments.store import Record
from headprune.lab.experiments.trial import Trial

HUGE = 10**12


def write(target: str, name: str, content: Any) -> None:
    if not isinstance(content, bytes | str):
        content = json.dumps(content)
    path = CORPUS / target / f"attack-{name}{TARGETS[target].ending}"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def valid(target: str, number: int = 0) -> Any:
    """A valid file of a target, to be changed; files are in the order of their names."""
    names = sorted(path.name for path in (CORPUS / target).iterdir())
    chosen = [data for name, data in zip(names, seeds_of(target), strict=True) if name.startswith("valid-")][number]
    return json.loads(chosen)


def values() -> None:
    scores = valid("scores")
    write("scores", "overflow", {**scores, "sums": {s: [1e160] * len(r) for s, r in scores["sums"].items()}})
    write("scores", "count", {**scores, "counts": dict.fromkeys(scores["counts"], 1e-310)})
    write("scores", "whole", json.dumps(scores).replace("0.5", "9" * 400))
    heads = valid("head-map", 1)
    heads["sites"][0]["tower"] = ["a"]
    write("head-map", "tower", heads)
    write("pattern-text", "digits", "#" + "9" * 5000)
    write("pattern-text", "layers", "4," + "9" * 5000)


def experiments() -> None:
    many = json.dumps(list(range(1000)))
    write("preset", "product", PRESET.replace("rate = [0.1, 0.5]", f"rate = {many}, a = {many}, b = {many}"))
    write("preset", "hex", PRESET.replace("[1, 2]", "[0x" + "f" * 6000 + "]"))
    write("preset", "deep", PRESET.replace('"{rate}"', "[" * 200 + "]" * 200))
    letters = [chr(n) for n in range(200, 600)]
    names = ["".join(random.Random(n).choices(letters, k=20_000)) for n in range(2)]
    slow = PRESET.replace('name = "model"', f'name = "{names[0]}"').replace('["model"]', f'["{names[1]}"]')
    write("preset", "near-miss", slow)
    chain = {f"n{i}": f"n{i + 1}}}{{n{i + 1}" for i in range(40)}
    trial = {
        "work": "command", "params": {"options": {}, "values": {}, "arguments": ["{n0}"]}, "seed": 1, "needs": chain,
        "step": "a", "label": "a",
    }  # fmt: skip
    common = {"error": "", "seconds": 1.0, "started": "", "environment": {}}
    write("trial", "doubling", {"schema": 1, "key": "0" * 16, "trial": trial, "status": "done", "result": {}, **common})
    other = Trial(work="command", params={"options": {}}, label="another")
    record = Record(trial=other, status="done").to_dict()
    write("trial", "other-name", " " + json.dumps(record))  # the target stores it under a key that is not its own
    notes = valid("run-notes")
    run = notes["runs"][0]
    run["trials"] = {"../../../x": next(iter(run["trials"].values()))}
    write("run-notes", "elsewhere", notes)
    write("report", "elsewhere", {"notes": notes, "records": valid("report", 4)["records"]})
    content = valid("report", 0)
    heads = content["records"][0]["result"]["heads"]
    heads["encoder.0:999999999"] = heads["encoder.0:1"]
    write("report", "ablation-index", content)
    content = valid("report", 4)
    for one in content["records"]:
        one["result"] = {**one["result"], "original": {"encoder.0": HUGE}, "macs": [10**400, 1]}
    write("report", "counts", content)


def models() -> None:
    entry = valid("pruned-entry")
    wide = copy.deepcopy(entry)
    wide["heads"]["sites"][0]["head_dim"] = HUGE
    write("pruned-entry", "wide", wide)
    many = copy.deepcopy(entry)
    many["heads"]["sites"][0]["original_num_heads"] = HUGE
    write("pruned-entry", "many", many)
    long = copy.deepcopy(entry)
    tensors = next(iter(long["edits"]["slices"].values()))
    for number in range(200):
        tensors[f"t{number}"] = {"dim": 0, "size": 1 << 20, "keep": [[0, 1 << 20]]}
    write("pruned-entry", "ranges", long)
    overlapping = copy.deepcopy(entry)
    cut = next(iter(next(iter(overlapping["edits"]["slices"].values())).values()))
    cut["keep"] = [[0, cut["size"]]] * 5000
    write("pruned-entry", "overlapping", overlapping)
    gates = valid("gates-entry")
    gates["sites"][0]["gate_of_head"] = [HUGE] * len(gates["sites"][0]["gate_of_head"])
    write("gates-entry", "many", gates)
    write("pruned-heads", "digits", {"9" * 5000: [1]})
    points = valid("levels")["curves"]["random"]
    write("levels", "elsewhere", {"curves": {"/../../../x": points, "a" * 3000: points}})
    gates = valid("finished-gates")
    write("finished-gates", "elsewhere", {**gates, "result": {**gates["result"], "setting": "../../x"}})


def data() -> None:
    write("table-jsonl", "class", '{"sentence": "a", "label": 1e15}\n{"sentence": "b", "label": 0}\n')
    write("table-jsonl", "surrogate", '{"sentence": "\\ud800", "label": 1}\n{"sentence": "b", "label": 0}\n')
    write("table-csv", "field", "sentence,label\n" + "a" * 131_073 + ",1\n")
    rows: list[Any] = []
    for axis in range(6):
        value: Any = 1
        for place in reversed(range(6)):
            value = [value] * (200 if place == axis else 1)
        rows.append({"input_ids": value, "labels": 1})
    write("encoded-rows", "padding", "".join(json.dumps(row) + "\n" for row in rows))
    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    chunks = b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in ((b"IHDR", header), (b"IDAT", zlib.compress(b"\0" * 99)), (b"IEND", b""))
    )
    write("image", "bomb", b"\x89PNG\r\n\x1a\n" + chunks)


if __name__ == "__main__":
    for make in (values, experiments, models, data):
        make()
