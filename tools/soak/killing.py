"""Starting a sweep and killing it: at any moment, just after a write, or a worker or the node of a cluster."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from headprune.checkpoint.exchange import PREFIX

# Processes of Ray: what runs trials, and what a node cannot live without.
VICTIMS = {"worker": ("ray::_on_worker", "ray::IDLE"), "node": ("ray::DashboardAgent", "ray::RuntimeEnvAgent")}
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True)
class Ended:
    """How a start of the sweep ended."""

    kind: str  # finished, killed at a moment, killed at a write, killed in a save, worker killed, node killed
    code: int | None
    output: str


def start_and_kill(
    command: Sequence[str], folder: Path, log: Path, chance: random.Random, *, on_ray: bool, longest: float
) -> Ended:
    """One start that is killed after a random while of at most so many seconds, unless it ends before."""
    kind = chance.choice(["moment", "write", "worker", "node"] if on_ray else ["moment", "write", "save"])
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        wait = chance.uniform(1, longest)
        deadline, before = time.monotonic() + wait, _newest(folder)
        while process.poll() is None and time.monotonic() < deadline:
            if kind == "write" and time.monotonic() > deadline - wait / 2 and _newest(folder) != before:
                break
            if kind == "save" and time.monotonic() > deadline - wait / 2 and _is_saving(folder):
                break
            if kind != "write" or time.monotonic() < deadline - wait / 2:
                before = _newest(folder)
            time.sleep(0.1 if kind not in ("write", "save") else 0.002)
        if process.poll() is not None:
            return Ended("finished", process.returncode, log.read_text(errors="replace"))
        if kind in VICTIMS and _kill_one(process.pid, VICTIMS[kind], chance):
            code = process.wait(timeout=1200)
            # A sweep must get over the death of a worker. With its only node it may end, and must go on when started.
            return Ended(f"{kind} killed", code if kind == "worker" else None, log.read_text(errors="replace"))
        _kill(process, chance.choice(SIGNALS), twice=kind == "save" and chance.random() < 0.5)
    told = {"write": "killed at a write", "save": "killed in a save"}.get(kind, "killed at a moment")
    return Ended(told, None, log.read_text(errors="replace"))


def cut_a_checkpoint(folder: Path, chance: random.Random) -> bool:
    """As a full disk leaves it: a file of the newest checkpoint of a training is empty, or a half."""
    states = sorted(folder.glob("work/*/out/**/checkpoints/checkpoint-*/trainer_state.json"))
    if not states:
        return False
    files = sorted(
        path for path in chance.choice(states).parent.iterdir() if path.suffix in (".pt", ".json", ".safetensors")
    )
    chosen = chance.choice(files)
    chosen.write_bytes(chosen.read_bytes()[: chance.choice([0, chosen.stat().st_size // 2])])
    return True


def _is_saving(folder: Path) -> bool:
    return any(name.startswith(PREFIX) for _, names, _ in os.walk(folder) for name in names)


def run_to_the_end(command: Sequence[str], log: Path) -> Ended:
    with log.open("wb") as output:
        code = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=False).returncode
    return Ended("finished", code, log.read_text(errors="replace"))


def _newest(folder: Path) -> tuple[int, int]:
    """How many files there are, and when the last one changed."""
    count, newest = 0, 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                changed = os.stat(os.path.join(root, name)).st_mtime_ns  # noqa: PTH116, PTH118  # often, so quickly
            except FileNotFoundError:
                continue
            count, newest = count + 1, max(newest, changed)
    return count, newest


def _kill(process: subprocess.Popen[bytes], number: int, *, twice: bool = False) -> None:
    """The sweep and, without mercy, everything that it started."""
    family = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, number)
    if twice and process.poll() is None:
        time.sleep(0.001)
        os.killpg(process.pid, number)
    try:
        process.wait(timeout=60)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for child in family:
        try:
            child.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(family, timeout=30)


def _kill_one(pid: int, titles: tuple[str, ...], chance: random.Random) -> bool:
    """One process of Ray, as if its machine had run out of memory."""
    found = [child for child in psutil.Process(pid).children(recursive=True) if _title(child).startswith(titles)]
    if not found:
        return False
    try:
        chance.choice(sorted(found, key=lambda process: process.pid)).kill()
    except psutil.NoSuchProcess:
        return False
    return True


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
