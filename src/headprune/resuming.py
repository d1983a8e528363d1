"""Long work in parts that survive an interruption: one small file a part, removed at the end."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from headprune.errors import HeadpruneError
from headprune.heads.files import dump, load, loads, write_text


class Parts:
    """Finished parts of one piece of work, by name. Parts of other work in the same folder are not taken for ours."""

    def __init__(self, folder: Path, key: str) -> None:
        self.folder, self.key = folder, key

    def get(self, name: str) -> Any:
        """What was kept under a name; None if nothing was, or if it belongs to other work."""
        try:
            content = load("part", self._path(name).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, HeadpruneError):
            return None
        return content.get("value") if content.get("key") == self.key else None

    def put(self, name: str, value: Any) -> None:
        write_text(self._path(name), dump("part", {"key": self.key, "value": value}))

    def finished(self) -> None:
        """The whole is written elsewhere: the parts can go."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _path(self, name: str) -> Path:
        return self.folder / f"{hashlib.sha256(f'{self.key} {name}'.encode()).hexdigest()[:16]}.json"


def note_step(path: Path, entry: Mapping[str, Any]) -> None:
    """Add what was found at a training step (`entry["step"]`) to a file of lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")  # a run was stopped while writing a line: this one is not to be lost with it
        file.write(json.dumps(entry).encode() + b"\n")


def noted_steps(path: Path) -> list[dict[str, Any]]:
    """What was noted, by step; of steps that were done again after an interruption, the last."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    entries: dict[int, dict[str, Any]] = {}
    for line in lines:
        try:
            entry = loads(line)
        except ValueError:
            continue  # the run was stopped while writing it
        if isinstance(entry, dict) and type(entry.get("step")) is int:
            entries[entry["step"]] = entry
    return [entries[step] for step in sorted(entries)]


def work_key(model: nn.Module, batches: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> str:
    """The same for the same weights, data and options; another for anything else."""
    digest = hashlib.sha256(json.dumps({k: str(v) for k, v in options.items()}, sort_keys=True).encode())
    for name, parameter in model.named_parameters():
        digest.update(f"{name}{tuple(parameter.shape)}{float(parameter.detach().double().sum())!r}".encode())
    for batch in batches:
        for name, value in sorted(batch.items()):
            if isinstance(value, torch.Tensor):
                digest.update(f"{name}{tuple(value.shape)}{float(value.double().sum())!r}".encode())
    return digest.hexdigest()[:16]
