"""Small files that ask for much are refused within a second, before any loop over what they say."""

from __future__ import annotations

import json
import os
import time

import pytest
from transformers import BertConfig, BertModel

import headprune  # noqa: F401  # restores what a config tells of
from headprune import files
from headprune.errors import HeadpruneError
from headprune.heads import HeadMap, HeadMask
from headprune.heads.stored import read_mask
from headprune.lab.experiments.library import find_preset
from headprune.lab.experiments.store import Record, Store
from headprune.lab.experiments.trial import Trial
from headprune.lab.report import gather, html_page

EDITS = {name: {} for name in ("slices", "attributes", "stubs", "configs", "attention", "arguments")}


def site(layer, heads=4, path=None, component="encoder", kept=()):
    return {
        "id": f"{component}.{layer}", "component": component, "layer": layer, "num_heads": len(kept),
        "num_kv_heads": len(kept), "head_dim": 1, "path": path or f"layer.{layer}", "output": f"{path or layer}.out",
        "original_num_heads": heads, "kept": list(kept), "groups": [[head] for head in kept], "layers": [layer],
        "tower": None, "batch_axis": 0,
    }  # fmt: skip


def build(*sites):
    config = BertConfig(
        hidden_size=16, num_attention_heads=4, num_hidden_layers=2, intermediate_size=16, vocab_size=50
    )  # fmt: skip
    heads = {"model_type": "bert", "sites": list(sites), "skipped": []}
    config.headprune = {"version": 1, "heads": heads, "edits": {"multihead": [], **EDITS}, "history": []}
    return BertModel(config)


def trial_with(folder, heads):
    result = {
        "task": "sst2", "metric": "accuracy", "kept": {"encoder.0": [0]}, "original": {"encoder.0": heads},
        "dev": {"metric": "accuracy", "score": 0.5, "interval": [0.5, 0.5], "confidence": 0.95, "examples": 9,
                "spread": None},
    }  # fmt: skip
    params = {"command": "finetune", "arguments": [], "options": {}, "values": {}}
    Store(folder).put(Record(trial=Trial(work="command", params=params, step="a"), status="done", result=result))
    report = gather([folder])
    html_page(report)
    if report.problems:
        raise HeadpruneError(str(report.problems[0]))


def preset_of(path, seeds):
    head = 'name = "mine"\nstudy = "s"\nline = "l"\nwhat = "w"\n'
    step = '[[small.steps]]\nname = "{}"\ncommand = "score"\narguments = ["x"]\noptions = {{seed = "{{seed}}"}}\n'
    path.write_text(f"{head}[small]\nseeds = {list(range(seeds))}\n{step.format('a')}{step.format('b')}")
    return find_preset(str(path))


def stored_as(make, folder):
    store = Store(folder)
    store.trials.mkdir(parents=True)
    make(store.trials / f"{'0' * 16}.json")
    gather([folder])


def mask_of(original, kept):
    return HeadMask.from_json(files.dump("mask", {"original": original, "kept": kept}))


BOMBS = {
    "2,000 sites on one path": lambda at: build(*(site(n, path="encoder.layer.0.attention") for n in range(2000))),
    "2**20 heads in a site": lambda at: build(site(0, 1 << 20)),
    "2**20 neurons in a small model": lambda at: build(site(0, 1 << 20, component="neurons")),
    "many sites with many heads": lambda at: build(*(site(n, 4096) for n in range(2000))),
    "40,000 sites in a map": lambda at: HeadMap.from_dict({"sites": [site(0)] * 40_000, "skipped": []}),
    "a mask of 10**12 heads": lambda at: mask_of({"encoder.0": 10**12}, {"encoder.0": [0]}),
    "a trial with 2**19 heads": lambda at: trial_with(at / "runs", 1 << 19),
    "a preset of 5,000 trials": lambda at: preset_of(at / "mine.toml", 2500),
    "a name of 100,000 parts in a preset": lambda at: (
        (at / "deep.toml").write_text(f"[a{'.b' * 100_000}]") and find_preset(str(at / "deep.toml"))
    ),
    "a pipe as a trial": lambda at: stored_as(os.mkfifo, at / "runs"),
    "a device as a trial": lambda at: stored_as(lambda path: path.symlink_to("/dev/zero"), at / "runs"),
    "a device as a mask": lambda at: read_mask(at.parent / "zero.json"),
    "a pipe as a preset": lambda at: os.mkfifo(at / "a.toml") or find_preset(str(at / "a.toml")),
    "a sparse file as a mask": lambda at: (
        (at / "m.json").touch() or os.truncate(at / "m.json", 1 << 40) or read_mask(at / "m.json")
    ),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_within_a_second(name, tmp_path):
    """By an error of ours."""
    zero = tmp_path.parent / "zero.json"
    if not zero.is_symlink():
        zero.symlink_to("/dev/zero")
    begun = time.process_time()
    with pytest.raises(HeadpruneError):
        BOMBS[name](tmp_path)
    assert time.process_time() - begun < 1.0


def test_a_trial_that_is_a_link_out_of_its_folder_is_refused(tmp_path):
    """What it leads to was not meant to be shown."""
    (tmp_path / "secret.json").write_text(json.dumps({"a": 1}))
    with pytest.raises(HeadpruneError, match="a link that leads out of its folder"):
        stored_as(lambda path: path.symlink_to(tmp_path / "secret.json"), tmp_path / "runs")
