"""Weights on disk without a model: tensors of a checkpoint read where they lie, and new files of them written."""

from __future__ import annotations

import json
import os
import struct
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headprune.errors import CheckpointError
from headprune.files import bounded_text, loads, write_text

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
NAMES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
DTYPES = {name: dtype for dtype, name in NAMES.items()}


class Shards:
    """The tensors of a checkpoint in safetensors. Nothing is read before it is asked for; what is read is mapped."""

    def __init__(self, folder: Path) -> None:
        from safetensors import SafetensorError, safe_open

        self.folder = folder
        self._files: dict[str, Any] = {}
        self.place: dict[str, str] = {}  # tensor -> file
        promised = _promised(folder)
        with ExitStack() as opened:
            for name in dict.fromkeys(promised.values()) if promised else [WEIGHTS]:
                try:
                    self._files[name] = opened.enter_context(safe_open(folder / name, framework="pt"))
                except (OSError, SafetensorError) as error:
                    raise CheckpointError(
                        f"'{folder / name}' cannot be read: {error}. A file of the checkpoint is missing or damaged: "
                        "fetch or save it again."
                    ) from error
                self.place |= dict.fromkeys(self._files[name].keys(), name)
            lies = [key for key, name in promised.items() if self.place.get(key) != name]
            if lies or (promised and len(promised) != len(self.place)):
                what = lies[0] if lies else next(key for key in self.place if key not in promised)
                raise CheckpointError(
                    f"'{folder / INDEX}' does not say where '{what}' is. Index and files are of different saves: fetch "
                    "or save the checkpoint again."
                )
            self._opened = opened.pop_all()

    def keys_by_file(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for key, name in self.place.items():
            found.setdefault(name, []).append(key)
        return found

    def shape(self, key: str) -> tuple[int, ...]:
        return tuple(self._files[self.place[key]].get_slice(key).get_shape())

    def dtype(self, key: str) -> torch.dtype:
        name = self._files[self.place[key]].get_slice(key).get_dtype()
        if name not in DTYPES:
            raise CheckpointError(
                f"'{key}' is stored as {name}, which cannot be computed with. Save the checkpoint in float32, float16 "
                "or bfloat16."
            )
        return DTYPES[name]

    def tensor(self, key: str) -> Tensor:
        found: Tensor = self._files[self.place[key]].get_tensor(key)
        return found

    def size(self, key: str) -> int:
        count = self.dtype(key).itemsize
        for length in self.shape(key):
            count *= length
        return count


def _promised(folder: Path) -> dict[str, str]:
    """What an index says of each tensor; nothing where there is one file."""
    if not (folder / INDEX).is_file():
        return {}
    try:
        found = loads(bounded_text(folder / INDEX))["weight_map"]
        if not isinstance(found, dict) or not all(
            isinstance(name, str) and Path(name).name == name and name.endswith(".safetensors")
            for name in found.values()
        ):
            raise ValueError("it does not name files of this folder")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"'{folder / INDEX}' cannot be read: {error}. Fetch or save the checkpoint again."
        ) from error
    return dict(found)


@dataclass(frozen=True)
class Entry:
    """A tensor that is to be written, made when its turn comes."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    make: Callable[[], Tensor]

    @property
    def size(self) -> int:
        count = self.dtype.itemsize
        for length in self.shape:
            count *= length
        return count


def write_shard(path: Path, entries: Sequence[Entry]) -> None:
    """A file of tensors, one in memory at a time; whole under its name, or not there."""
    ordered = sorted(entries, key=lambda entry: (-entry.dtype.itemsize, entry.name))  # every tensor aligned
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    place = 0
    for entry in ordered:
        header[entry.name] = {
            "dtype": NAMES[entry.dtype], "shape": list(entry.shape), "data_offsets": [place, place + entry.size],
        }  # fmt: skip
        place += entry.size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            for entry in ordered:
                tensor = entry.make()
                assert (tuple(tensor.shape), tensor.dtype) == (entry.shape, entry.dtype), "as was said before"
                file.write(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except OSError as error:
        Path(temporary).unlink(missing_ok=True)
        raise CheckpointError(
            f"'{path}' could not be written: {error}. What was finished is kept; make room and start the same command "
            "again."
        ) from error
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_index(folder: Path, files: Mapping[str, Sequence[str]], total: int) -> None:
    """Which tensor is in which file."""
    places = {key: name for name, keys in files.items() for key in keys}
    content = {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}
    write_text(folder / INDEX, json.dumps(content, indent=2) + "\n")
