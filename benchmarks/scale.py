"""What headprune costs at the size of language models: time as ratios within one run, memory as anonymous memory.

Real configs typed in, random weights. Each figure is made in a process of its own on one thread; times are processor
time, so that a busy machine does not show in them. Extra memory is the highest anonymous memory during a step, less
what there was before it. An A/A control (the forward pass against itself) says how far ratios move by chance.

    python benchmarks/scale.py                 # every figure of the sizes that fit into what is free
    python benchmarks/scale.py recover-1.2b    # one figure; the others stay as they are
    python benchmarks/scale.py --list

Adds to benchmarks/results/scale.json and prints a line for each figure.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "scale.json"
# vocabulary, width, layers, heads, key-value heads, width of a head, neurons, one table for both ends
SIZES = {
    "0.1b": (32000, 768, 12, 12, 4, 64, 2048, True),
    "0.5b": (151936, 896, 24, 14, 2, 64, 4864, True),  # Qwen 2.5 0.5B
    "1.2b": (128256, 2048, 16, 32, 8, 64, 8192, True),  # Llama 3.2 1B
    "3b": (128256, 3072, 28, 24, 8, 128, 8192, True),  # Llama 3.2 3B
    "8b": (128256, 4096, 32, 32, 8, 128, 14336, False),  # Llama 3.1 8B
}
TOKENS = (16, 64)  # examples, and tokens of each


def config_of(size: str, layers: int | None = None) -> Any:
    from transformers import LlamaConfig

    vocabulary, width, depth, heads, groups, head, neurons, tied = SIZES[size]
    return LlamaConfig(
        vocab_size=vocabulary, hidden_size=width, num_hidden_layers=layers or depth, num_attention_heads=heads,
        num_key_value_heads=groups, head_dim=head, intermediate_size=neurons, tie_word_embeddings=tied,
        bos_token_id=0, eos_token_id=1,
    )  # fmt: skip


def filled(shape: Sequence[int], dtype: Any, seed: int) -> Any:
    """Random numbers, a run of them again and again: drawing billions takes minutes."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    some = (torch.randn(1 << 20, generator=generator) * 0.02).to(dtype)
    total = math.prod(shape)
    return some.repeat(-(-total // len(some)))[:total].view(*shape)


def model_of(size: str, dtype: str, layers: int | None = None) -> Any:
    import torch
    from transformers import LlamaForCausalLM

    torch.set_num_threads(1)
    with torch.device("meta"):
        model = LlamaForCausalLM(config_of(size, layers)).to(getattr(torch, dtype)).eval()
    model.to_empty(device="cpu")
    model.model.rotary_emb.__init__(model.config)  # its table is no weight
    for seed, parameter in enumerate(model.parameters()):
        is_norm = parameter.dim() == 1
        parameter.data = torch.ones_like(parameter) if is_norm else filled(parameter.shape, parameter.dtype, seed)
        parameter.requires_grad_(False)
    model.tie_weights()
    return model


def batches_of(model: Any, examples: int = TOKENS[0], length: int = TOKENS[1], rows: int = 4) -> list[dict[str, Any]]:
    import torch

    ids = torch.randint(2, model.config.vocab_size, (examples, length), generator=torch.Generator().manual_seed(0))
    return [{"input_ids": part, "labels": part} for part in ids.split(rows)]


def anonymous() -> int:
    return 1024 * int(re.search(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text())[1])  # type: ignore[index]


@contextmanager
def highest_memory() -> Iterator[list[int]]:
    """The anonymous memory before the block and the most during it."""
    gc.collect()
    found, over = [anonymous(), 0], threading.Event()

    def watch() -> None:
        while not over.wait(0.005):
            found[1] = max(found[1], anonymous())

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()


def seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def forward_seconds(model: Any, batches: list[dict[str, Any]]) -> float:
    import torch

    def run() -> None:
        with torch.no_grad():
            for batch in batches:
                model(input_ids=batch["input_ids"])

    return seconds(run)


def half_mask(model: Any, heads: Any) -> Any:
    """Every second group of heads goes."""
    import headprune as hp

    return hp.HeadMask.from_dict(
        heads, {site.id: [head for group in site.groups[::2] for head in group] for site in heads.attention}
    )


def by_hand(model: Any) -> None:
    """What somebody would write for this model alone."""
    import torch

    config = model.config
    group, width = config.num_attention_heads // config.num_key_value_heads, config.head_dim
    groups = torch.arange(0, config.num_key_value_heads, 2)
    queries = (groups[:, None] * group + torch.arange(group)).flatten()
    rows, keys = ((part[:, None] * width + torch.arange(width)).flatten() for part in (queries, groups))
    for layer in model.model.layers:
        attention = layer.self_attn
        for name, keep in (("q_proj", rows), ("k_proj", keys), ("v_proj", keys)):
            projection = getattr(attention, name)
            projection.weight = torch.nn.Parameter(projection.weight[keep], requires_grad=False)
            projection.out_features = len(keep)
        attention.o_proj.weight = torch.nn.Parameter(attention.o_proj.weight[:, rows].contiguous(), requires_grad=False)
        attention.o_proj.in_features = len(rows)


def find_prune(size: str, rounds: int = 3) -> dict[str, Any]:
    """Finding and removing, against slicing the same weights by hand; each on a new model."""
    import headprune as hp

    hand, ours, checked = [], [], []
    for _ in range(rounds):
        model = model_of(size, "float32")
        hand.append(seconds(lambda model=model: by_hand(model)))
        for times, verify in ((ours, False), (checked, True)):
            model = model_of(size, "float32")
            times.append(seconds(lambda model=model, verify=verify: hp.prune_(
                model, half_mask(model, hp.find_heads(model)), verify=verify)))  # fmt: skip
    middle = statistics.median
    return {
        "ratio": middle(ours) / middle(hand), "verified": middle(checked) / middle(hand), "hand_seconds": middle(hand),
        "seconds": middle(ours), "target": 4,
    }  # fmt: skip


def verify_memory(size: str) -> dict[str, Any]:
    import torch

    import headprune as hp
    from headprune.hooks import raised_to_double
    from headprune.structure.dummy_inputs import example_inputs
    from headprune.structure.run import run

    model = model_of(size, "bfloat16")
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    with highest_memory() as found:
        took = seconds(lambda: hp.prune_(model, half_mask(model, hp.find_heads(model))))
    with highest_memory() as raised, torch.no_grad(), raised_to_double(model):  # what a doubtful gap asks for, besides
        run(model, example_inputs(model))
    extra = found[1] - found[0]
    return {
        "ratio": (extra + max(0, raised[1] - raised[0])) / weights, "extra_bytes": extra,
        "extra_bytes_in_double": raised[1] - raised[0], "seconds": took, "target": 0.35,
    }  # fmt: skip


def recover(size: str, dtype: str = "bfloat16", layers: int | None = None) -> dict[str, Any]:
    import headprune as hp

    model = model_of(size, dtype, layers)
    batches = batches_of(model)
    heads = hp.find_heads(model)
    forward = [forward_seconds(model, batches) for _ in range(3)]
    mask = half_mask(model, heads)
    with highest_memory() as found:
        took = seconds(lambda: hp.recover_(model, mask, batches))
    return {
        "ratio": took / statistics.median(forward), "seconds": took, "forward_seconds": statistics.median(forward),
        "control": forward[2] / forward[1], "extra_bytes": found[1] - found[0],
        "tokens": math.prod(TOKENS), "target": 4,
    }  # fmt: skip


def search(size: str, dtype: str) -> dict[str, Any]:
    import headprune as hp

    model = model_of(size, dtype)
    batches = batches_of(model)
    heads = hp.find_heads(model)
    forward = [forward_seconds(model, batches) for _ in range(3)]
    with highest_memory() as found:
        took = seconds(lambda: hp.search(model, batches, prune=0.25, unit="group", heads=heads))
    return {
        "ratio": took / statistics.median(forward), "seconds": took, "forward_seconds": statistics.median(forward),
        "control": forward[2] / forward[1], "extra_bytes": found[1] - found[0],
        "tokens": math.prod(TOKENS), "target": 5,
    }  # fmt: skip


def exponent() -> dict[str, Any]:
    """Of recover_ in the number of layers, at a width at which layers cost little: what is left is headprune's own."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    import headprune as hp

    torch.set_num_threads(1)
    times: dict[int, float] = {}
    for layers in (5, 10, 20, 40, 80):
        took = []
        for _ in range(3):
            torch.manual_seed(0)
            config = LlamaConfig(
                vocab_size=999, hidden_size=256, num_hidden_layers=layers, num_attention_heads=8,
                num_key_value_heads=4, intermediate_size=512,
            )  # fmt: skip
            model = LlamaForCausalLM(config).eval()
            batches, heads = batches_of(model), hp.find_heads(model)
            mask = half_mask(model, heads)
            took.append(seconds(lambda m=model, k=mask, b=batches: hp.recover_(m, k, b)))
        times[layers] = statistics.median(took)
    slope = statistics.linear_regression([math.log(n) for n in times], [math.log(t) for t in times.values()]).slope
    return {"exponent": slope, "seconds": times, "target": 1.1}


def checkpoint(size: str, folder: Path) -> Path:
    """Random weights in the files of a real config, one layer after another, without a model in memory."""
    import torch
    from transformers import LlamaForCausalLM

    from headprune.checkpoint.shards import Entry, write_index, write_shard

    with torch.device("meta"):
        model: Any = LlamaForCausalLM(config_of(size)).to(torch.bfloat16)
    model.config.dtype = torch.bfloat16
    model.config.architectures = ["LlamaForCausalLM"]
    model.config.save_pretrained(folder)
    files: dict[str, list[Any]] = {}
    for seed, (name, value) in enumerate(model.named_parameters()):
        part = name.split(".")[2] if ".layers." in name else "rest"
        make = (
            (lambda value=value: torch.ones(value.shape, dtype=value.dtype)) if value.dim() == 1
            else (lambda value=value, seed=seed: filled(value.shape, value.dtype, seed))
        )  # fmt: skip
        files.setdefault(f"model-{part}.safetensors", []).append(Entry(name, value.dtype, tuple(value.shape), make))
    for file, entries in files.items():
        write_shard(folder / file, entries)
    total = sum(entry.size for entries in files.values() for entry in entries)
    write_index(folder, {file: [entry.name for entry in entries] for file, entries in files.items()}, total)
    return folder


def stream_repair(size: str) -> dict[str, Any]:
    """Prune, repair and save from the disk; anonymous memory of the whole process."""
    import torch

    import headprune as hp

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=os.environ.get("SCALE_FOLDER")) as place:
        folder = checkpoint(size, Path(place) / "whole")
        weights = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
        gc.collect()
        with highest_memory() as found:
            start, clock = time.process_time(), time.monotonic()
            streamed = hp.stream(folder)
            ids = torch.randint(2, SIZES[size][0], TOKENS, generator=torch.Generator().manual_seed(0))
            batches = [{"input_ids": part} for part in ids.split(4)]
            mask = half_mask(None, streamed.heads)
            streamed.prune(mask, Path(place) / "small", data=batches, recover="least-squares")
            took, wall = time.process_time() - start, time.monotonic() - clock
        left = sum(path.stat().st_size for path in (Path(place) / "small").glob("*.safetensors"))
    return {
        "peak_anonymous_bytes": found[1], "gibibytes": found[1] / 2**30, "seconds": took, "wall_seconds": wall,
        "tokens": math.prod(TOKENS), "bytes": weights, "bytes_left": left, "target": 2.5,
    }  # fmt: skip


def mask_on_disk(size: str) -> dict[str, Any]:
    """A mask applied from file to file, against copying the same files tensor by tensor with safetensors."""
    import torch
    from safetensors import safe_open
    from safetensors.torch import save_file

    import headprune as hp

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=os.environ.get("SCALE_FOLDER")) as place:
        folder = checkpoint(size, Path(place) / "whole")

        def copy() -> None:
            (Path(place) / "copy").mkdir(exist_ok=True)
            for path in folder.glob("*.safetensors"):
                with safe_open(path, framework="pt") as file:
                    content = {key: file.get_tensor(key) for key in list(file.keys())}
                save_file(content, Path(place) / "copy" / path.name)

        def apply() -> None:
            streamed = hp.stream(folder)
            streamed.prune(half_mask(None, streamed.heads), Path(place) / "small")
            shutil.rmtree(Path(place) / "small")

        apply()  # imports
        copies, ours = [], []
        for _ in range(3):
            copies.append(seconds(copy))
            ours.append(seconds(apply))
    middle = statistics.median
    return {
        "ratio": middle(ours) / middle(copies), "seconds": middle(ours), "copy_seconds": middle(copies),
        "control": copies[2] / copies[1], "target": 1.3,
    }  # fmt: skip


FIGURES: dict[str, Callable[[], dict[str, Any]]] = {
    "find-prune-0.1b": lambda: find_prune("0.1b"),
    "find-prune-0.5b": lambda: find_prune("0.5b"),
    "verify-0.1b": lambda: verify_memory("0.1b"),
    "verify-1.2b": lambda: verify_memory("1.2b"),
    "recover-0.1b": lambda: recover("0.1b"),
    "recover-1.2b": lambda: recover("1.2b"),
    "search-0.5b": lambda: search("0.5b", "float32"),
    "search-1.2b": lambda: search("1.2b", "bfloat16"),
    "exponent": exponent,
    "stream-0.5b": lambda: stream_repair("0.5b"),
    "stream-3b": lambda: stream_repair("3b"),
    "stream-8b": lambda: stream_repair("8b"),
    "mask-0.5b": lambda: mask_on_disk("0.5b"),
    "mask-3b": lambda: mask_on_disk("3b"),
}


def stored() -> dict[str, Any]:
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figures", nargs="*", help="names of figures; all without any")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--here", action="store_true", help="in this process, without storing it")
    options = parser.parse_args(arguments)
    names = options.figures or [name for name in FIGURES if name != "stream-8b"]
    if options.list:
        print("\n".join(FIGURES))
        return
    if unknown := [name for name in names if name not in FIGURES]:
        raise SystemExit(f"No figure called {unknown[0]}; there are {', '.join(FIGURES)}.")
    if options.here:
        print(json.dumps(FIGURES[names[0]]()))
        return
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "MALLOC_TRIM_THRESHOLD_": "0"}
    for name in names:
        done = subprocess.run(
            [sys.executable, __file__, "--here", name], stdout=subprocess.PIPE, text=True, env=environment, check=True
        )
        found = json.loads(done.stdout.strip().splitlines()[-1])
        result = stored()
        figures = {**result.get("figures", {}), name: found}
        whole = {
            "benchmark": "scale", "command": "python benchmarks/scale.py", "threads": 1,
            "machine": platform.processor() or platform.machine(), "figures": dict(sorted(figures.items())),
        }  # fmt: skip
        RESULTS.write_text(json.dumps(whole, indent=1) + "\n")
        print(name, json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
