"""How fast pruned models are in onnxruntime, against what their MACs promise.

A 12 x 12 x 768 model (BERT-base shape, random weights), half and three quarters of the heads removed evenly, batch 8,
length 128, each exported by `hp.export(format="onnx")`, which compares the file's answers with the model's. Ratios are
medians over rounds in which all files run once, in turning order, with a second session of the whole model as an A/A
control. Writes benchmarks/results/onnx_speed.json.
"""

from __future__ import annotations

import copy
import json
import platform
import tempfile
from pathlib import Path
from typing import Any

import onnxruntime
import torch
import transformers
from transformers import BertConfig, BertModel

import headprune as hp
from headprune.cost.macs import count_macs
from headprune.cost.measurement import interleaved, ratio
from headprune.files import write_text
from headprune.structure.dummy_inputs import example_inputs

BATCH, LENGTH, ROUNDS = 8, 128, 21
TARGET = 0.90
RESULTS = Path(__file__).parent / "results" / "onnx_speed.json"


def session_of(model: Any, folder: Path) -> Any:
    hp.export(model, folder, format="onnx")
    return onnxruntime.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])


def main() -> None:
    torch.manual_seed(0)
    whole = BertModel(BertConfig(), add_pooling_layer=False).eval()
    heads = hp.find_heads(whole)
    batch = example_inputs(whole, batch=BATCH, length=LENGTH)
    variants = {
        name: hp.prune_(copy.deepcopy(whole), hp.HeadMask.from_dict(heads, {s.id: range(keep) for s in heads}))
        for name, keep in (("half", 6), ("three_quarters", 3))
    }
    with tempfile.TemporaryDirectory() as folder:
        models = {"whole": whole, "again": whole, **variants}
        sessions = {name: session_of(model, Path(folder) / name) for name, model in models.items()}
        gaps = {}
        runs = []
        for name, session in sessions.items():
            fed = {node.name: batch[node.name].numpy() for node in session.get_inputs()}
            with torch.no_grad():
                expected = models[name](**batch)[0]
            (answer,) = session.run(None, fed)
            gaps[name] = float((torch.from_numpy(answer) - expected).abs().max())
            runs.append(lambda session=session, fed=fed: session.run(None, fed))
        times = interleaved(runs, ROUNDS, warmup=2)
    control = ratio(times[0], times[1])
    macs = count_macs(whole, heads, batch).total
    found: dict[str, Any] = {}
    for (name, variant), series in zip(variants.items(), times[2:], strict=True):
        predicted = macs / count_macs(variant, hp.find_heads(variant), batch).total
        measured = ratio(times[0], series)
        found[name] = {
            "predicted_by_macs": predicted, "measured": measured[0], "measured_quartiles": measured[1:],
            "reached": measured[0] / predicted, "target": TARGET, "met": measured[0] / predicted >= TARGET,
            "largest_difference": gaps[name],
        }  # fmt: skip
        print(
            f"{name} removed: {measured[0]:.3f} times as fast in onnxruntime, MACs predict {predicted:.3f}, reached "
            f"{measured[0] / predicted:.3f} (target {TARGET}); outputs differ by {gaps[name]:.0e}"
        )
    print(f"A/A {control[0]:.3f} ({control[1]:.3f} to {control[2]:.3f})")
    result = {
        "benchmark": "onnx_speed",
        "model": "BERT-base shape, 12 layers x 12 heads x 768, random weights (seed 0), float32",
        "batch": BATCH,
        "length": LENGTH,
        "rounds": ROUNDS,
        "machine": {
            "processor": platform.processor() or platform.machine(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "onnxruntime": onnxruntime.__version__,
        },
        "control": control[0],
        "control_quartiles": control[1:],
        "speedup": found,
    }
    write_text(RESULTS, json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
