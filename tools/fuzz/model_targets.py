"""Targets for checkpoints and what commands store beside them: the entries of a config, weights, curves, gates.

What other libraries read before us is not altered here: a config.json that is not JSON is refused by transformers, and
headprune has no part in it. What a pruned checkpoint says, and its weights, are ours: whatever is wrong with them must
come out as a headprune error.
"""

from __future__ import annotations

import atexit
import copy
import json
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch
from tools.fuzz.targets import heads, target

import headprune as hp
from headprune.checkpoint.out_folder import check_companions, new_model_folder
from headprune.checkpoint.pretrained import model_card
from headprune.errors import FileFormatError, HeadpruneError
from headprune.files import write_text
from headprune.jobs import functions as functions_job
from headprune.jobs import gates as gates_job
from headprune.lab.analysis.functions.kinds import Findings, Thresholds


@cache
def _bert() -> Any:
    from transformers import BertConfig

    sizes = {"vocab_size": 9, "hidden_size": 8, "intermediate_size": 8, "max_position_embeddings": 8}
    return BertConfig(num_hidden_layers=2, num_attention_heads=4, **sizes)


def _new(config: Any) -> Any:
    from transformers import BertForSequenceClassification

    return BertForSequenceClassification(config)


@cache
def checkpoints() -> Path:
    """Folders of a pruned and of a gated model; made once in a process."""
    root = Path(tempfile.mkdtemp(prefix="headprune-fuzz-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    torch.manual_seed(0)
    pruned = _new(copy.deepcopy(_bert()))
    found = hp.find_heads(pruned)
    hp.prune_(pruned, hp.HeadMask.full(found).without("encoder.0:1", "encoder.0:2", "encoder.1"))
    pruned.save_pretrained(root / "pruned")
    gated = _new(copy.deepcopy(_bert()))
    hp.attach_gates(gated)
    gated.save_pretrained(root / "gated")
    _new(copy.deepcopy(_bert())).save_pretrained(root / "whole")
    return root


@cache
def stored_files() -> dict[str, bytes]:
    """The files of the pruned model."""
    return {path.name: path.read_bytes() for path in (checkpoints() / "pruned").iterdir()}


def stored(which: str, entry: str) -> Any:
    return json.loads((checkpoints() / which / "config.json").read_text(encoding="utf-8"))[entry]


def _built(entry: str, value: Any) -> object:
    """As `from_pretrained` builds a model: empty, from its config."""
    config = copy.deepcopy(_bert())
    config.architectures = ["BertForSequenceClassification"]
    setattr(config, entry, value)
    with torch.device("meta"):
        return _new(config)


@target("tree", seconds=20)
def pruned_entry(data: bytes, folder: Path) -> object:
    """config.headprune on the empty skeleton, and on a model card."""
    value = _value(data)
    _built("headprune", value)
    return model_card(value, "", "") if isinstance(value, dict) else None


@target("tree", share=0.6, seconds=20)
def gates_entry(data: bytes, folder: Path) -> object:
    return _built("headprune_gates", _value(data))


@target("tree", share=0.1, seconds=30)
def pruned_heads(data: bytes, folder: Path) -> object:
    """What v4 left in a config: heads are found on a twin of the model, which takes its time."""
    return _built("pruned_heads", _value(data))


def _value(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FileFormatError("transformers reads the config before us") from error


def _loaded(folder: Path) -> object:
    from transformers import AutoModelForSequenceClassification

    return AutoModelForSequenceClassification.from_pretrained(folder)


@target("tree", share=0.1, seconds=30)
def checkpoint(data: bytes, folder: Path) -> object:
    """A whole folder through `from_pretrained`, with an altered entry."""
    config = json.loads(stored_files()["config.json"])
    (folder / "config.json").write_text(json.dumps({**config, "headprune": _value(data)}))
    (folder / "model.safetensors").write_bytes(stored_files()["model.safetensors"])
    return _loaded(folder)


@target("tensors", share=0.1, seconds=30, ending=".safetensors")
def weights(data: bytes, folder: Path) -> object:
    """A pruned checkpoint whose weights are cut off, damaged or others: headprune wraps the error, so it is ours."""
    (folder / "config.json").write_bytes(stored_files()["config.json"])
    (folder / "model.safetensors").write_bytes(data)
    return _loaded(folder)


@target("tree", share=0.3)
def memory_config(data: bytes, folder: Path) -> object:
    """The configs of our own language models, as transformers makes them from config.json."""
    from headprune.lab.models.configuration import AllAttentionConfig, TransformerXLConfig

    value = _value(data)
    if not isinstance(value, dict) or not all(name in _SHAPE for name in value):
        return None  # names that are not ours go to transformers
    for kind in (AllAttentionConfig, TransformerXLConfig):
        try:
            kind(**value)
        except HeadpruneError:
            continue
    return None


_SHAPE = {
    "vocab_size": 27, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "memory_length": 8,
    "same_length": True, "positions": "learned", "position_rows": 16, "cutoffs": [5, 10], "cutoff_divisor": 2,
    "final_norm": False,
}  # fmt: skip


@target("json", share=0.5)
def levels(data: bytes, folder: Path) -> object:
    """curve.json or gates.json, of which `headprune functions --levels` draws what is left; names become files."""
    path, out = folder / "curve.json", folder / "out"
    path.write_bytes(data)
    rows: dict[Any, Any] = {head: {"functions": ["positional"]} for head in heads().heads()}
    found = Findings(rows, {}, 1, 1, 1, Thresholds())
    levels = functions_job._levels(path, found, heads())
    for level in levels:
        write_text(out / functions_job._file_name(level.order), "")
    return levels


@target("json", share=0.5)
def finished_gates(data: bytes, folder: Path) -> object:
    """gates.json of an earlier run, from which `headprune gates` goes on."""
    (folder / "gates.json").write_bytes(data)
    found = gates_job.finished(folder / "gates.json", {"setting": "keep-2"})
    if found is None or len(data) % 16:  # pictures take a third of a second
        return found
    return gates_job.draw_gates([found, found], folder, "html")


SECRET = b"a secret that lies outside"
KINDS = ("file", "link-out", "link-in", "link-cache", "link-gone", "device", "pipe", "sparse", "folder", "link-folder")


@target("tree", share=0.5, seconds=5)
def model_folder(data: bytes, folder: Path) -> object:
    """A folder with whatever somebody put beside the weights, `{name: kind}`: nothing from outside is copied."""
    asked = _value(data)
    source, blobs = folder / "models--a--b" / "snapshots" / "c", folder / "models--a--b" / "blobs"
    source.mkdir(parents=True)
    blobs.mkdir()
    (blobs / "0").write_text("words")
    (folder / "secret").write_bytes(SECRET)
    for name, kind in asked.items() if isinstance(asked, dict) else ():
        place = source / "".join(c for c in str(name)[:40] if c.isalnum() or c in "._-").lstrip(".")
        if place != source and not place.is_symlink() and not place.exists():
            _put(place, KINDS.index(kind) if kind in KINDS else 0, folder)
    try:
        check_companions(source)
        with new_model_folder(folder / "small", source):
            pass
    finally:
        for copied in (folder / "small").rglob("*"):
            assert not copied.is_symlink()
            assert not copied.is_file() or SECRET not in copied.read_bytes()
    return None


def _put(place: Path, kind: int, folder: Path) -> None:
    leads = {1: folder / "secret", 2: place.parent, 3: folder / "models--a--b" / "blobs" / "0", 4: folder / "no",
             5: Path("/dev/zero"), 9: folder}  # fmt: skip
    if kind in leads:
        place.symlink_to(leads[kind])
    elif kind == 6:
        os.mkfifo(place)
    elif kind == 8:
        place.mkdir()
    else:
        place.write_text("text")
        if kind == 7:
            os.truncate(place, 1 << 40)
