"""Pruned models, and a process that loads them without headprune."""

from __future__ import annotations

import json

import torch

import headprune as hp
from headprune.structure.dummy_inputs import example_inputs
from tests.families.tiny import tiny_model

LOADED = """
import json, sys
from pathlib import Path

class Nothing:  # headprune cannot be imported here
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "headprune":
            raise ImportError("headprune is not installed here")

sys.meta_path.insert(0, Nothing())
import torch, transformers
for folder in map(Path, sys.argv[1:]):
    told = json.loads((folder / "told.json").read_text())
    auto = json.loads((folder / "config.json").read_text()).get("auto_map")
    if auto:  # the code to load it is in the folder
        model = getattr(transformers, next(iter(auto))).from_pretrained(folder, trust_remote_code=True).eval()
    else:
        model = getattr(transformers, told["class"]).from_pretrained(folder).eval()
    with torch.no_grad():
        found = model(**{name: torch.tensor(value) for name, value in told["batch"].items()})[0]
    expected = torch.tensor(told["output"])
    assert torch.allclose(found, expected, rtol=1e-5, atol=1e-5), (folder, (found - expected).abs().max())
    assert model.num_parameters() <= told["parameters"], folder  # T5's table of positions is cut, too
    print(folder.name, "as it was")
assert "headprune" not in sys.modules
"""


def uniformly_pruned(family):
    """The first head or group of every site is gone."""
    model = tiny_model(family)
    heads = hp.find_heads(model)
    gone = [f"{site.id}:{head}" for site in heads for head in site.groups[0]]
    return hp.prune_(model, hp.HeadMask.full(heads).without(*gone))


def tell(folder, model):
    """What the model answers, beside its checkpoint."""
    batch = {name: value for name, value in example_inputs(model).items() if isinstance(value, torch.Tensor)}
    with torch.no_grad():
        output = model(**batch)[0]
    told = {
        "class": type(model).__name__, "batch": {name: value.tolist() for name, value in batch.items()},
        "output": output.tolist(), "parameters": model.num_parameters(),
    }  # fmt: skip
    (folder / "told.json").write_text(json.dumps(told))


def answers_without_headprune(folders, programs):
    """In a process where it cannot even be imported."""
    done = programs.run("-c", LOADED, *folders)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("as it was") == len(folders)
