"""Trials on a Ray cluster. The only file that talks to Ray.

Every trial is a Ray task with its request for cores and GPUs. What it needs (models of earlier trials, data) is put
into Ray's object store once and unpacked once per node; what it wrote comes home the same way, so that no shared file
system is needed. A task whose worker or node dies is run again elsewhere; results that came home are never asked for
again.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import secrets
import shutil
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headprune.errors import MissingExtraError, StoreError
from headprune.lab.experiments.execute import execute_trial
from headprune.lab.experiments.store import Record
from headprune.lab.experiments.sweep import Sweep
from headprune.lab.experiments.trial import Trial
from headprune.lab.experiments.work import Needed, works

FOLDERS = "headprune-node-"  # how folders of nodes begin, in their temporary directories
RETRIES = 5  # of a task whose worker or node died
TIDY_SECONDS = 10
PATIENCE = 30.0  # seconds without a result before it is looked whether what waits can still be run


@dataclass(frozen=True, kw_only=True)
class RayRunner:
    """`address` of a running cluster ("auto" for the one of this machine); without it, one is started here.

    `modules` are imported by workers first: they register kinds of work."""

    address: str | None = None
    num_cpus: float = 1
    num_gpus: float = 0
    modules: Sequence[str] = ()
    waiting: int = 2  # trials in the queue for every one that can run, so that nobody waits for the driver

    def run(self, sweep: Sweep) -> Iterator[Record]:
        ray = _ray()
        begun = not ray.is_initialized()
        if begun:
            _connect(ray, self.address)
        try:
            yield from self._run(ray, sweep)
        finally:
            if begun:
                ray.shutdown()

    def _run(self, ray: Any, sweep: Sweep) -> Iterator[Record]:
        self._check_room(ray)
        session = f"{FOLDERS}{secrets.token_hex(8)}"
        packed = {known: ray.put(pack(path)) for known, path in sweep.inputs.items()}
        running: dict[Any, _Running] = {}
        try:
            while True:
                for trial in sweep.ready():
                    if len(running) >= self._room(ray):
                        break
                    given = self._given(ray, trial, sweep.give(trial), packed)
                    started = _Running(trial, (*given, list(self.modules), sweep.device, sweep.threads, session))
                    running[self._start(ray, started)] = started
                if not running:
                    return
                done, _ = ray.wait(list(running), num_returns=1, timeout=PATIENCE)
                for reference in done:
                    trial = running.pop(reference).trial
                    record = self._brought_home(ray, reference, trial, sweep)
                    yield record
                    self._release(packed, sweep)
                if not done:
                    self._move(ray, running)
        finally:
            _tidy(ray, session, list(running))

    def _room(self, ray: object) -> int:
        """How many trials are worth handing out; nodes may come and go."""
        fits = sum(self._fits(node) for node in _nodes(ray))
        return max(1, fits) * self.waiting

    def _fits(self, node: Mapping[str, float]) -> int:
        asked = {"CPU": self.num_cpus, "GPU": self.num_gpus}
        return int(min((node.get(name, 0) // much for name, much in asked.items() if much), default=1))

    def _check_room(self, ray: object) -> None:
        """A trial that no node can hold would wait for ever."""
        nodes = _nodes(ray)
        if not any(self._fits(node) for node in nodes):
            most = [max((node.get(name, 0) for node in nodes), default=0) for name in ("CPU", "GPU")]
            raise StoreError(
                f"A trial asks for {self.num_cpus:g} cores and {self.num_gpus:g} GPUs; no node of the cluster has more "
                f"than {most[0]:g} and {most[1]:g}. Ask for less, or add nodes."
            )

    def _given(
        self, ray: Any, trial: Trial, needs: Mapping[str, Needed], packed: dict[str, Any]
    ) -> tuple[Any, Any, Any]:
        """The trial, and what it needs as references; in lists, so that they are fetched only where they are needed."""
        for key, need in zip(trial.needs.values(), needs.values(), strict=True):
            if key not in packed:
                packed[key] = ray.put(pack(need.folder))
        handed = {name: (key, dict(needs[name].result), [packed[key]]) for name, key in trial.needs.items()}
        inputs = {known: [packed[known]] for known in trial.params.get("inputs", {}).values()}
        return trial.to_dict(), handed, inputs

    def _start(self, ray: Any, started: _Running) -> Any:
        started.cores = self._cores(ray, started.trial)
        ways = {"num_cpus": started.cores, "num_gpus": self.num_gpus, "max_retries": RETRIES}
        return ray.remote(_on_worker).options(**ways, retry_exceptions=False).remote(*started.given)

    def _cores(self, ray: object, trial: Trial) -> float:
        """What a trial asks for. One that measures time takes all the cores of a node that can hold it, so that Ray
        runs nothing beside it there."""
        known = works.find(trial.work)  # maybe only its module on the workers knows it
        if known is None or not known.alone:
            return self.num_cpus
        return max([self.num_cpus, *(node.get("CPU", 0) for node in _nodes(ray) if self._fits(node))])

    def _move(self, ray: Any, running: dict[Any, _Running]) -> None:
        """Trials that wait for a node as large as one that has gone are asked for anew."""
        self._check_room(ray)
        largest = max((node.get("CPU", 0) for node in _nodes(ray) if self._fits(node)), default=0)
        for reference, started in list(running.items()):
            if started.cores > largest >= self.num_cpus:
                ray.cancel(reference, force=True)
                del running[reference]
                running[self._start(ray, started)] = started

    def _release(self, packed: dict[str, Any], sweep: Sweep) -> None:
        """Models that no trial needs any more leave the object store."""
        needed = {
            key for trial in sweep.trials.values() if trial.key() not in sweep.records for key in trial.needs.values()
        }
        for key in [key for key in packed if key in sweep.trials and key not in needed]:
            del packed[key]

    def _brought_home(self, ray: Any, reference: Any, trial: Trial, sweep: Sweep) -> Record:
        try:
            content, archive = ray.get(reference)
        except ray.exceptions.RayError as error:  # the task died as often as it may
            return Record(trial=trial, status="failed", error=f"{type(error).__name__}: {error}")
        folder = sweep.store.work_folder(trial.key())
        unpack(archive, folder)
        return Record.from_dict(content, sweep.store.path(trial.key()))


@dataclass
class _Running:
    """A trial that was handed out."""

    trial: Trial
    given: tuple[Any, ...]  # arguments of `_on_worker`
    cores: float = 0.0


def _on_worker(
    content: dict[str, Any],
    needs: dict[str, tuple[str, dict[str, Any], list[Any]]],
    inputs: dict[str, list[Any]],
    modules: list[str],
    device: str,
    threads: int,
    session: str,
) -> tuple[dict[str, Any], bytes]:
    """Runs in a worker: the record of the trial, and what it wrote."""
    for module in modules:
        importlib.import_module(module)
    trial = Trial.from_dict(content)
    folder = _node_folder(session)
    places = {name: Needed(_placed(folder, key, found), result) for name, (key, result, found) in needs.items()}
    given = {known: _placed(folder, known, found) for known, found in inputs.items()}
    with tempfile.TemporaryDirectory(dir=folder, prefix="trial-") as name:  # tidied with the rest if this one is killed
        record = execute_trial(trial, Path(name) / "work", places, given, device, threads)
        return record.to_dict(), pack(Path(name) / "work")


def _placed(node: Path, key: str, references: list[Any]) -> Path:
    """Unpacked once per node and sweep, however many workers there are."""
    import ray
    from filelock import FileLock

    place = node / key
    with FileLock(node / f"{key}.lock"):
        if not place.is_dir():
            unpack(ray.get(references[0]), place)
    single = place / _SINGLE
    return next(iter(single.iterdir())) if single.is_dir() else place


_SINGLE = ".headprune-file"  # holds an input that is a single file


def pack(path: Path) -> bytes:
    """A folder, or a single file, as one archive."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", dereference=True) as archive:
        if path.is_file():
            archive.add(path, arcname=f"{_SINGLE}/{path.name}")
        elif path.is_dir():
            for entry in sorted(path.iterdir()):
                archive.add(entry, arcname=entry.name)
    return buffer.getvalue()


def unpack(content: bytes, folder: Path) -> None:
    """Into a folder, whole or not at all, and never beside it. What was in the folder is replaced."""
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        archive.extractall(partial, filter="data")
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)


def _node_folder(session: str) -> Path:
    """Where this node keeps what was unpacked for a sweep; nobody else's, and several nodes may share a machine."""
    import ray

    folder = Path(tempfile.gettempdir()) / f"{session}-{ray.get_runtime_context().get_node_id()}"
    while not _is_held(folder):
        folder.mkdir(mode=0o700, exist_ok=True)
    for other in folder.parent.glob(f"{FOLDERS}*"):
        if other != folder and not other.is_symlink():
            _remove_abandoned(other)
    return folder


_held: dict[Path, int] = {}  # folders that this worker uses; the locks end with it


def _is_held(folder: Path) -> bool:
    """Let every worker see that this one uses a folder; False if it is not there (any more)."""
    import fcntl

    if folder in _held and folder.is_dir():
        return True
    try:
        handle = os.open(folder, os.O_RDONLY)
        fcntl.flock(handle, fcntl.LOCK_SH)  # waits while somebody removes it
        _held[folder] = handle
        return os.fstat(handle).st_ino == folder.stat().st_ino
    except OSError:
        return False


def _remove_abandoned(folder: Path) -> None:
    """What a killed driver left here, if no worker uses it any more."""
    import fcntl

    with contextlib.suppress(OSError):  # in use, or another user's
        handle = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(handle)


def _tidy(ray: Any, session: str, running: list[Any]) -> None:
    """Every node forgets what was unpacked there, and what trials that nobody waits for any more were writing."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    with contextlib.suppress(ray.exceptions.RayError):  # a node that is gone has nothing to tidy
        for reference in running:
            ray.cancel(reference, force=True)
        places = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in ray.nodes() if node["Alive"]]
        forget = ray.remote(_forget)
        ways = {"num_cpus": 0, "max_retries": 0}
        asked = [forget.options(**ways, scheduling_strategy=place).remote(session) for place in places]
        ray.wait(asked, num_returns=len(asked), timeout=TIDY_SECONDS)


def _forget(session: str) -> None:
    """A worker that was stopped a moment ago may still have written something."""
    folder = _node_folder(session)
    for _ in range(20):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(0.05)


def _nodes(ray: Any) -> list[Mapping[str, float]]:
    """What every living node has."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def _connect(ray: Any, address: str | None) -> None:
    try:
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        ray.init(address=address or "local", **options, **({"include_dashboard": False} if address is None else {}))
    except Exception as error:  # Ray has no error of its own for a node that does not come up in time
        told = {
            True: ("No Ray cluster could be started here", "A busy machine may be too slow: try again, or run inline"),
            False: (f"The Ray cluster at '{address}' cannot be reached", "Start one with `ray start --head`"),
        }
        what, todo = told[address is None]
        raise StoreError(f"{what}: {error}. {todo}. Finished trials are kept.") from error


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError("The runner 'ray' needs Ray: pip install 'headprune[ray]'.") from error
    return ray
