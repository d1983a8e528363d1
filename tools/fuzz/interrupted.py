"""Saves that are interrupted at every file-system event: `python tools/fuzz/interrupted.py --faults 500`.

A command's save over an older model (weights, config, card, tokenizer, prune.json) is stopped before or inside each of
its events: by one Ctrl-C, by two, by kill -9, by a full disk. Then the folder is looked at as the next load or save
does. It must hold the old model or the new one, byte for byte, and nothing else. The rest are files of a training's
newest checkpoint that are cut to nothing or to a half: the run must go on from the one before it. Anything else is a
loss. Writes benchmarks/results/interrupted.json.
"""

from __future__ import annotations

import argparse
import builtins
import errno
import io
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:  # run as a script
    sys.path.insert(0, str(ROOT))
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from headprune.checkpoint.exchange import PREFIX, finish_interrupted  # noqa: E402
from headprune.errors import HeadpruneError  # noqa: E402

RESULT = ROOT / "benchmarks" / "results" / "interrupted.json"
EVENTS = ("rename", "replace", "mkdir", "rmdir", "unlink", "remove", "link", "fsync", "chmod")
KINDS = ("one signal", "two signals", "kill", "full disk")
State = dict[str, bytes]


def ctrl_c() -> NoReturn:
    raise KeyboardInterrupt


def kill() -> NoReturn:
    os._exit(9)


def full_disk() -> NoReturn:
    raise OSError(errno.ENOSPC, "No space left on device")


@contextmanager
def fault_at(event: int, action: Callable[[], object], *, inside: bool, times: int = 1) -> Iterator[list[str]]:
    """Count what is done to files until the block ends, and let the action happen at one event: before it, or after
    the system has done it and before Python knows. `times` is at how many events from there on."""
    seen: list[str] = []

    def watched(name: str, original: Callable[..., Any], writes: Callable[..., bool] = lambda *a, **k: True) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if not writes(*args, **kwargs):
                return original(*args, **kwargs)
            number = len(seen)
            seen.append(name)
            is_due = event <= number < event + times
            if is_due and not inside:
                action()
            result = original(*args, **kwargs)
            if is_due and inside:
                if hasattr(result, "close"):
                    result.close()
                action()
            return result

        return call

    def opens_to_write(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> bool:
        return not isinstance(file, int) and any(letter in mode for letter in "wax+")

    def creates(path: Any, flags: int, *args: Any, **kwargs: Any) -> bool:
        return bool(flags & (os.O_CREAT | os.O_WRONLY | os.O_RDWR))

    import transformers.modeling_utils as modeling

    places: list[tuple[Any, str, Any]] = [(os, name, watched(name, getattr(os, name))) for name in EVENTS]
    places += [
        (os, "open", watched("open", os.open, creates)),
        (builtins, "open", watched("open", builtins.open, opens_to_write)),
        (io, "open", watched("open", io.open, opens_to_write)),
        (modeling, "safe_save_file", watched("weights", modeling.safe_save_file)),
    ]
    before = [(place, name, getattr(place, name)) for place, name, _ in places]
    support = shutil.rmtree.avoids_symlink_attacks  # how it removes depends on which functions it sees
    try:
        for place, name, function in places:
            setattr(place, name, function)
        yield seen
    finally:
        for place, name, function in before:
            setattr(place, name, function)
        assert support == shutil.rmtree.avoids_symlink_attacks


def state(folder: Path) -> State:
    """Every file with what is in it."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def restore(content: State, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    for name, data in content.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


class Case:
    """A save from one state of a folder to another."""

    def __init__(self, folder: Path, save: Callable[[], object]) -> None:
        self.folder, self.save, self.old = folder, save, state(folder)
        with fault_at(-1, ctrl_c, inside=False) as seen:
            save()
        self.events, self.new = seen, state(folder)
        assert self.old != self.new
        assert not any(PREFIX in name for name in self.new)

    def lost(self, event: int, kind: str, *, inside: bool) -> str | None:
        """What is wrong after the fault; None if nothing is."""
        restore(self.old, self.folder)
        if kind == "kill":
            self.kill_at(event, inside)
        else:
            action = full_disk if kind == "full disk" else ctrl_c
            with (
                suppress(KeyboardInterrupt, OSError, HeadpruneError),
                fault_at(event, action, inside=inside, times=2 if kind == "two signals" else 1),
            ):
                self.save()
        finish_interrupted(self.folder)
        found = state(self.folder)
        left = [path.name for path in self.folder.rglob(f"{PREFIX}*")]
        if found in (self.old, self.new) and not left:
            return None
        wrong = sorted(name for name in found if found[name] not in (self.old.get(name), self.new.get(name)))
        gone = sorted((self.old.keys() & self.new.keys()) - found.keys())
        what = f"left {left}" if left else f"wrong {wrong}" if wrong else f"gone {gone}" if gone else "a mixture"
        return f"{kind} {'inside' if inside else 'before'} event {event} ({self.events[event]}): {what}"

    def kill_at(self, event: int, inside: bool) -> None:
        child = os.fork()
        if child == 0:
            try:
                with fault_at(event, kill, inside=inside):
                    self.save()
            finally:
                os._exit(1)
        os.waitpid(child, 0)

    def faults(self) -> list[tuple[int, str, bool]]:
        return [
            (event, kind, inside) for event in range(len(self.events)) for kind in KINDS for inside in (False, True)
        ]


def model_case(folder: Path) -> Case:
    """What `prune --force` saves over an older model."""
    from tests.families.tiny import full_mask, tiny_model

    import headprune as hp
    from headprune.checkpoint.out_folder import RESULT as PRUNED
    from headprune.checkpoint.out_folder import new_model_folder

    source, out = folder / "source", folder / "out"
    source.mkdir()
    for name, text in (("vocab.txt", "a b c"), ("README.md", "# Mine"), ("1_Pooling/config.json", "{}")):
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_text(text)
    model = tiny_model("bert")

    def save(number: int, **how: Any) -> None:
        with new_model_folder(out, source) as new:
            model.save_pretrained(new, **how)
            (new / PRUNED).write_text(json.dumps({"number": number}))

    hp.prune_(model, full_mask(model).without("encoder.0:1"))
    save(1, max_shard_size="30KB")
    (out / "foreign.txt").write_text("mine")
    (out / "vocab.txt").write_text("older")
    hp.prune_(model, full_mask(model).without("encoder.1:0"))
    return Case(out, lambda: save(2))


def training_checkpoints(folder: Path) -> Path:
    """A run with the checkpoints of two epochs."""
    from tests.tasks.toy import SST2, examples, sentences, tokenizer, write_model
    from transformers import AutoModelForSequenceClassification

    from headprune.tasks.finetune import Recipe, finetune

    model = AutoModelForSequenceClassification.from_pretrained(write_model(folder / "model"))
    recipe = Recipe(epochs=2, learning_rate=1e-3, batch_size=20, seed=0)
    finetune(model, tokenizer(), SST2, examples(folder, sentences(40, 0)), folder / "checkpoints", recipe,
             keep_checkpoints=True, quiet=True)  # fmt: skip
    return folder / "checkpoints"


def damaged_checkpoint(folder: Path, path: Path, size: float) -> str | None:
    """What is wrong when a file of the newest checkpoint has only this share of its bytes; None if nothing is."""
    from headprune.checkpoint.training_state import newest_whole

    whole, newest = path.read_bytes(), path.parent
    path.write_bytes(whole[: int(len(whole) * size)])
    found = newest_whole(folder)
    aside = folder / f"damaged-{newest.name.rpartition('-')[2]}"
    if aside.is_dir():
        aside.rename(newest)
    path.write_bytes(whole)
    unread = path.suffix in (".md", ".txt")  # by a run that goes on
    if found is None or (found == newest and not unread):
        return f"{path.name} cut to {size:.0%}: the run would go on from {found.name if found else 'its start'}"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=500, help="at least; all of a save's events come first")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-record", action="store_true", help="write no results")
    asked = parser.parse_args()
    import logging

    import transformers

    logging.disable(logging.WARNING)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    begun, kinds, losses = time.monotonic(), Counter[str](), []
    with tempfile.TemporaryDirectory(prefix="headprune-interrupted-") as name:
        checkpoints = training_checkpoints(Path(name) / "training")
        newest = max(checkpoints.glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]))
        for path in sorted(path for path in newest.rglob("*") if path.is_file()):
            for size in (0.0, 0.5, 0.99):
                kinds["cut checkpoint"] += 1
                losses += [what for what in [damaged_checkpoint(checkpoints, path, size)] if what]
        (Path(name) / "save").mkdir()
        case = model_case(Path(name) / "save")
        todo = case.faults()
        chance = random.Random(asked.seed)
        while len(todo) + kinds.total() < asked.faults:
            todo.append(chance.choice(case.faults()))
        for event, kind, inside in todo:
            kinds[kind] += 1
            losses += [what for what in [case.lost(event, kind, inside=inside)] if what]
    for what in losses:
        print(f"  {what}", flush=True)
    told = {
        "date": datetime.now(UTC).date().isoformat(),
        "command": f"python tools/fuzz/interrupted.py --faults {asked.faults}",
        "faults": kinds.total(), "events": len(case.events), "kinds": dict(kinds), "losses": losses,
        "seconds": round(time.monotonic() - begun, 1),
    }  # fmt: skip
    parts = ", ".join(f"{kind} {count}" for kind, count in kinds.items())
    print(f"{len(losses)} losses in {told['faults']} faults ({parts}), {told['seconds']} s")
    if not asked.no_record:
        RESULT.write_text(json.dumps(told, indent=1) + "\n")
    return 1 if losses else 0


if __name__ == "__main__":
    sys.exit(main())
