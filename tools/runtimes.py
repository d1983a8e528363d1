"""Which runtime runs which pruned model: every cell is tried on a tiny model, and the answer stored.

`python -m tools.runtimes` tries all (some minutes) and writes docs/runtimes.json and the table of docs/deployment.md;
with `--missing` only what is not stored yet, with `--table` nothing but the table again. A cell is `tested` if the file
was written, opened by the runtime itself and compared with PyTorch; otherwise it has the first sentence of the refusal.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from tests.checkpoint.exports.gguf.llms import smollm_tokenizer, tiny_llm
from tests.families.tiny import tiny_model

import headprune as hp
from headprune.checkpoint.load_model import load_model
from headprune.errors import HeadpruneError
from headprune.files import write_text
from headprune.structure.dummy_inputs import example_inputs
from headprune.structure.run import difference, run

HERE = Path(__file__).resolve().parents[1] / "docs"
STORED, PAGE = HERE / "runtimes.json", HERE / "deployment.md"
BEGIN, END = "<!-- runtimes: begin -->", "<!-- runtimes: end -->"
FORMATS = {
    "plain": "transformers, `plain`", "standalone": "transformers, `standalone`", "gguf": "llama.cpp",
    "onnx": "ONNX Runtime", "openvino": "OpenVINO",
}  # fmt: skip
LLMS = {
    "llama": {},
    "mistral": {"sliding_window": None},
    "qwen2": {"layer_types": None},
    "qwen3": {"layer_types": None},
}
FAMILIES = ("llama", "bert")
SHAPES = ("alike", "uneven heads", "uneven neurons", "emptied")


def pruned(family: str, shape: str, folder: Path) -> Any:
    """A tiny model of a family with this shape."""
    model = tiny_llm(family, folder, **LLMS[family]) if family in LLMS else tiny_model(family).eval()
    heads = hp.find_heads(model, neurons=True)
    first, other = heads.attention.sites[0], heads.attention.sites[-1]
    group = [f"{{}}:{head}" for head in first.groups[0]]
    gone = {
        "alike": [name.format(site.id) for site in heads.attention for name in group],
        "uneven heads": [name.format(other.id) for name in group],
        "uneven neurons": [f"{heads.neurons.sites[0].id}:{i}" for i in range(3)],
        "emptied": [first.id, heads.neurons.sites[-1].id],
    }[shape]
    return hp.prune_(model, hp.HeadMask.full(heads).without(*gone))


def answer(format_: str, family: str, shape: str) -> str:
    """`tested`, or why it is refused."""
    with tempfile.TemporaryDirectory() as place:
        model, out = pruned(family, shape, Path(place) / "model"), Path(place) / "out"
        more: dict[str, Any] = {"quantize": "f32", "tokenizer": smollm_tokenizer()} if format_ == "gguf" else {}
        try:
            hp.export(model, out, format=format_, **more)
        except HeadpruneError as error:
            return "refused: " + str(error).split(". ")[0].removesuffix(".")
        if format_ in ("plain", "standalone"):  # the others were run and compared while they were written
            loaded = load_model(str(out), "cpu", trust_remote_code=format_ == "standalone").eval()
            batch = example_inputs(model)
            with torch.no_grad():
                assert difference(run(loaded, batch), run(model, batch)).is_small, (format_, family, shape)
    return "tested"


def table(found: dict[str, Any]) -> str:
    """One line a family and shape, one column a runtime."""
    lines = ["| family | shape | " + " | ".join(FORMATS.values()) + " |", "|---|---|" + "---|" * len(FORMATS)]
    notes: list[str] = []
    for family in FAMILIES:
        for shape in SHAPES:
            cells = []
            for name in FORMATS:
                said = found["cells"][f"{name} {family} {shape}"]
                if said != "tested" and said not in notes:
                    notes.append(said)
                cells.append("tested" if said == "tested" else f"refused [{notes.index(said) + 1}]")
            lines.append(f"| {family} | {shape} | " + " | ".join(cells) + " |")
    told = [f"{number}. {note.removeprefix('refused: ')}." for number, note in enumerate(notes, 1)]
    return "\n".join([*lines, "", "Refused, because:", "", *told])


def main() -> None:
    if "--table" not in sys.argv:
        kept = json.loads(STORED.read_text())["cells"] if "--missing" in sys.argv and STORED.exists() else {}
        cells: dict[str, str] = {}
        for family in FAMILIES:
            for shape in SHAPES:
                for name in FORMATS:
                    cell = f"{name} {family} {shape}"
                    cells[cell] = kept.get(cell) or answer(name, family, shape)
                    print(cell, cells[cell], flush=True)
                    write_text(STORED, json.dumps({"cells": {**kept, **cells}}, indent=1) + "\n")
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    found = json.loads(STORED.read_text(encoding="utf-8"))
    write_text(PAGE, f"{before}{BEGIN}\n{table(found)}\n{END}{after}")


if __name__ == "__main__":
    main()
