"""Pruned models where people run them: llama.cpp, ONNX Runtime, OpenVINO; speed, bytes and what it costs.

`smollm2`: SmolLM2-135M-Instruct, whole and shrunk, in llama.cpp at f16, Q8_0 and Q4_0: milliseconds of a prompt of 256
tokens and of a generated token, and perplexity on text (both as llama.cpp tells them). `minilm`: all-MiniLM-L6-v2,
whole and with MACs cut, in ONNX Runtime, OpenVINO and PyTorch, float32 and int8.

Every figure of speed is the median ratio of rounds in which all variants run once, in turning order, with the whole
model a second time as an A/A control. One thread. Writes benchmarks/results/runtimes.json.

    python benchmarks/runtimes.py --smollm2 FOLDER --shrunk FOLDER --text FILE
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import math
import platform
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

import headprune as hp
from headprune.checkpoint.exports.gguf.runtime import LlamaCpp
from headprune.cost.macs import count_macs
from headprune.cost.measurement import interleaved, ratio
from headprune.files import write_text
from headprune.structure.dummy_inputs import example_inputs

RESULTS = Path(__file__).parent / "results" / "runtimes.json"
KINDS = ("f16", "q8_0", "q4_0")
PROMPT, GENERATED, ROUNDS, SCORED = 256, 24, 7, 400
TARGET = 0.9  # of what MACs promise for prompts, and bytes for generation


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--smollm2", "--shrunk", "--text"):
        parser.add_argument(name, type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        found = {
            "benchmark": "runtimes",
            "machine": {
                "processor": platform.processor() or platform.machine(),
                "note": "shared with other work: ratios of interleaved rounds, with their controls",
                **{
                    name: version(name)
                    for name in ("torch", "transformers", "xllamacpp", "onnxruntime", "openvino", "nncf")
                },
            },
            "smollm2": smollm2(given, Path(folder)),
            "minilm": minilm(Path(folder), given.rounds),
        }
    write_text(RESULTS, json.dumps(found, indent=1) + "\n")


def smollm2(given: Any, folder: Path) -> dict[str, Any]:
    models = {name: AutoModelForCausalLM.from_pretrained(place).eval()
              for name, place in (("whole", given.smollm2), ("shrunk", given.shrunk))}  # fmt: skip
    tokenizer = AutoTokenizer.from_pretrained(given.smollm2)
    tokens = tokenizer(given.text.read_text(encoding="utf-8")[:20_000])["input_ids"][: max(PROMPT, SCORED)]
    macs = {name: count_macs(model, hp.find_heads(model), example_inputs(model, batch=1, length=PROMPT)).total
            for name, model in models.items()}  # fmt: skip
    found: dict[str, Any] = {
        "prompt": PROMPT, "generated": GENERATED, "rounds": given.rounds, "scored_tokens": SCORED,
        "macs_left": macs["shrunk"] / macs["whole"], "target": TARGET, "kinds": {},
    }  # fmt: skip
    files: dict[tuple[str, str], Path] = {}
    for name, model in models.items():
        for kind in KINDS:
            files[name, kind] = hp.export(model, folder / f"{name}-{kind}.gguf", format="gguf", quantize=kind,
                                          unchecked=True)  # fmt: skip
    del models
    gc.collect()
    for kind in KINDS:
        found["kinds"][kind] = row = kind_of_file(files["whole", kind], files["shrunk", kind], tokens, given.rounds)
        row["prompt_reached"] = row["prompt_speedup"][0] * found["macs_left"]
        row["generation_reached"] = row["generation_speedup"][0] * row["bytes_left"]
        row["met"] = min(row["prompt_reached"], row["generation_reached"]) >= TARGET
        print(kind, json.dumps(row))
    return found


def kind_of_file(whole: Path, shrunk: Path, tokens: list[int], rounds: int) -> dict[str, Any]:
    """Both at one kind of weights, with the whole one opened twice."""
    opened = [LlamaCpp(file, context=PROMPT + SCORED, exact=False, threads=1) for file in (whole, whole, shrunk)]
    prompts: list[list[float]] = [[], [], []]
    steps: list[list[float]] = [[], [], []]
    for round_ in range(rounds + 1):
        for turn in range(3):
            place = (turn + round_) % 3
            timed = opened[place].timings(tokens[:PROMPT], GENERATED)
            if round_:  # the first warms up
                prompts[place].append(timed["prompt_ms"])
                steps[place].append(timed["predicted_per_token_ms"])
    perplexities = [perplexity(file, tokens[:SCORED]) for file in (opened[0], opened[2])]
    for file in opened:
        file.__exit__(None, None, None)
    sizes = [file.stat().st_size for file in (whole, shrunk)]
    return {
        "bytes": sizes, "bytes_left": sizes[1] / sizes[0],
        "prompt_tokens_per_second": [1000 * PROMPT / float(np.median(prompts[i])) for i in (0, 2)],
        "generated_tokens_per_second": [1000 / float(np.median(steps[i])) for i in (0, 2)],
        "prompt_speedup": ratio(prompts[0], prompts[2]), "prompt_control": ratio(prompts[0], prompts[1]),
        "generation_speedup": ratio(steps[0], steps[2]), "generation_control": ratio(steps[0], steps[1]),
        "perplexity": perplexities,
    }  # fmt: skip


def perplexity(file: LlamaCpp, tokens: list[int]) -> float:
    told = [file.log_prob(tokens[: i + 1], tokens[i + 1]) for i in range(len(tokens) - 1)]
    return math.exp(-sum(told) / len(told))


def minilm(folder: Path, rounds: int, batch: int = 8, length: int = 128) -> dict[str, Any]:
    """The whole model in float32 against one with a fifth of the MACs, in float32 and int8."""
    import onnxruntime
    import openvino

    whole = AutoModel.from_pretrained(hp.demo_model()).eval()
    inputs = example_inputs(whole, batch=batch, length=length)
    heads = hp.find_heads(whole, neurons=True)
    mask = hp.select(hp.score(whole, heads=heads, method="magnitude"), heads, macs=0.2, model=whole)
    small = hp.prune_(copy.deepcopy(whole), mask)
    macs = [count_macs(one, hp.find_heads(one), inputs).total for one in (whole, small)]
    runs: dict[str, Any] = {}
    for name, model in (("whole", whole), ("shrunk", small)):
        hp.export(model, folder / f"{name}-onnx", format="onnx", int8=True)
        hp.export(model, folder / f"{name}-openvino", format="openvino", int8=True)
        for kind, file in (("float32", "model.onnx"), ("int8", "model.int8.onnx")):
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = 1
            session = onnxruntime.InferenceSession(str(folder / f"{name}-onnx" / file), options,
                                                   providers=["CPUExecutionProvider"])  # fmt: skip
            fed = {node.name: given_to(inputs, node.name) for node in session.get_inputs()}
            runs[f"{name} onnxruntime {kind}"] = lambda session=session, fed=fed: session.run(None, fed)
        for kind, file in (("float32", "openvino_model.xml"), ("int8", "openvino_model.int8.xml")):
            hints = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32"}
            compiled = openvino.Core().compile_model(folder / f"{name}-openvino" / file, "CPU", hints)
            fed = {node.get_any_name(): given_to(inputs, node.get_any_name()) for node in compiled.inputs}
            runs[f"{name} openvino {kind}"] = lambda compiled=compiled, fed=fed: compiled(fed)
        runs[f"{name} pytorch float32"] = lambda model=model: in_pytorch(model, inputs)
    runs["control"] = runs["whole onnxruntime float32"]
    times = dict(zip(runs, interleaved(list(runs.values()), rounds, warmup=1), strict=True))
    against = times["whole onnxruntime float32"]
    found = {name: ratio(against, series) for name, series in times.items()}
    for name, value in found.items():
        print(f"{name}: {value[0]:.2f} times as fast as the whole model in float32 in onnxruntime")
    return {"batch": batch, "length": length, "rounds": rounds, "macs_left": macs[1] / macs[0],
            "against": "whole onnxruntime float32", "speedup": found}  # fmt: skip


def given_to(inputs: Any, name: str) -> np.ndarray:
    return (inputs[name] if name in inputs else torch.zeros_like(inputs["input_ids"])).numpy()


def in_pytorch(model: Any, inputs: Any) -> None:
    with torch.no_grad():
        model(**inputs)


if __name__ == "__main__":
    started = time.monotonic()
    main()
    print(f"{time.monotonic() - started:.0f} seconds")
