"""Checkpoints of a training: which of them are whole, found by opening every file, not by trusting that it is there."""

from __future__ import annotations

import json
import logging
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

log = logging.getLogger("headprune")

STATE = "trainer_state.json"  # the Trainer writes it last
OPTIMIZER, SCHEDULER = "optimizer.pt", "scheduler.pt"  # where weights are not shared out among processes


def newest_whole(folder: Path) -> Path | None:
    """The last checkpoint from which a training can go on. Damaged ones after it are set aside under another name: the
    Trainer would count them as newer than those that it writes next, and keep them instead."""
    found = {path: path.name.rpartition("-")[2] for path in folder.glob("checkpoint-*") if path.is_dir()}
    for path in sorted((path for path in found if found[path].isdecimal()), key=lambda path: -int(found[path])):
        fault = fault_of(path)
        if fault is None:
            return path
        aside = folder / f"damaged-{found[path]}"
        shutil.rmtree(aside, ignore_errors=True)
        path.replace(aside)
        log.warning("The checkpoint '%s' is passed over: %s. It is now called '%s'.", path, fault, aside.name)
    return None


def fault_of(checkpoint: Path) -> str | None:
    """What is wrong with the first file that cannot be read whole; None if all can."""
    present = {str(path.relative_to(checkpoint)): path for path in sorted(checkpoint.rglob("*")) if path.is_file()}
    needed = [STATE, *([SCHEDULER] if OPTIMIZER in present else [])]
    missing = [name for name in needed if name not in present]
    missing += [f"{part}…" for part in ("model", "optim") if not any(part in name for name in present)]
    if missing:
        return f"it has no {missing[0]}"
    for name, path in present.items():
        try:
            _CHECKS.get(path.suffix, _not_empty)(path)
        except Exception as error:  # whatever its reader stumbles over
            return f"{name} cannot be read ({next(iter(str(error).strip().splitlines()), type(error).__name__)})"
    return None


def _not_empty(path: Path) -> None:
    """Of a kind that we do not know, such as a tokenizer's: half of one cannot be told, nothing at all can."""
    if path.stat().st_size == 0:
        raise ValueError("it is empty")


def _json(path: Path) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    if path.name.endswith(".index.json"):
        lost = sorted(name for name in set(content["weight_map"].values()) if not (path.parent / name).is_file())
        if lost:
            raise ValueError(f"it names {lost[0]}, which is not there")


def _safetensors(path: Path) -> None:
    from safetensors import safe_open

    with safe_open(path, framework="pt"):  # compares the header with the size
        pass


def _torch(path: Path) -> None:
    """The sums of all parts are right. What may only be loaded by running code (arguments) is not unpacked."""
    import torch

    with zipfile.ZipFile(path) as archive:
        wrong = archive.testzip()
    if wrong is not None:
        raise ValueError(f"{wrong} is damaged")
    if path.name in (OPTIMIZER, SCHEDULER):
        torch.load(path, map_location="cpu", weights_only=True, mmap=True)


_CHECKS: dict[str, Callable[[Path], None]] = {
    ".json": _json, ".safetensors": _safetensors, ".pt": _torch, ".pth": _torch, ".bin": _torch,
}  # fmt: skip
