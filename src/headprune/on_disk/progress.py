"""How far the work on a checkpoint is: finished files of weights, and the states of the data behind them."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from headprune.checkpoint.shards import Entry, write_shard
from headprune.files import WorkParts
from headprune.surgery.edits import Edits
from headprune.types import Batch

UNFINISHED = "unfinished"
STATES = "states.safetensors"


@dataclass(frozen=True)
class DoneLayer:
    edits: Edits
    keys: list[str]
    size: int


class StreamProgress:
    """In OUT/unfinished: no folder that loads. Work that was asked otherwise, or of other files, has another key."""

    def __init__(self, out: Path, asked: Mapping[str, object], source: Path, data: Sequence[Batch] = ()) -> None:
        digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode())
        for path in sorted(source.iterdir()):
            if path.is_file():
                digest.update(f"{path.name} {path.stat().st_size} {path.stat().st_mtime_ns}".encode())
        for batch in data:
            for name, value in sorted(batch.items()):
                if isinstance(value, torch.Tensor):
                    digest.update(name.encode() + value.contiguous().view(-1).numpy().tobytes())
        key = digest.hexdigest()[:16]
        self.folder = out / UNFINISHED / key
        self._parts = WorkParts(self.folder / "layers", key)

    def has(self, file: str) -> bool:
        return (self.folder / file).is_file()

    def layer(self, file: str) -> DoneLayer | None:
        noted = self._parts.get(file)
        last = self._parts.get("last")
        if not isinstance(noted, dict) or last is None or not self.has(file):
            return None
        if noted["place"] > last["place"] or not (self.folder / last["states"]).is_file():
            return None
        return DoneLayer(Edits.from_dict(noted["edits"]), list(noted["keys"]), int(noted["size"]))

    def is_last(self, file: str) -> bool:
        last = self._parts.get("last")
        return last is not None and last["file"] == file

    def states(self) -> list[torch.Tensor]:
        from safetensors.torch import load_file

        found = load_file(self.folder / self._parts.get("last")["states"])
        return [found[str(number)] for number in range(len(found))]

    def note(self, file: str, edits: Edits, keys: list[str], size: int, states: Sequence[torch.Tensor]) -> None:
        """A layer is done: its file is there, then the states behind it, then the note that says so."""
        place = int(file.split("-")[1])
        name = f"{place:05d}-{STATES}"
        write_shard(
            self.folder / name,
            [
                Entry(str(number), tensor.dtype, tuple(tensor.shape), lambda tensor=tensor: tensor)  # type: ignore[misc]
                for number, tensor in enumerate(states)
            ],
        )
        before = self._parts.get("last")
        self._parts.put(file, {"edits": edits.to_dict(), "keys": keys, "size": size, "place": place})
        self._parts.put("last", {"file": file, "place": place, "states": name})
        if before is not None and before["states"] != name:
            (self.folder / before["states"]).unlink(missing_ok=True)

    @staticmethod
    def clear(folder: Path) -> None:
        shutil.rmtree(folder.parent, ignore_errors=True)
