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
import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headprune.errors import MissingExtraError, StoreError
from headprune.experiments.performing import perform
from headprune.experiments.store import Record
from headprune.experiments.sweep import Sweep
from headprune.experiments.trial import Trial
from headprune.experiments.work import Needed, alone

RETRIES = 5  # of a task whose worker or node died
TIDY_SECONDS = 10


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
            _tidy(ray)
            if begun:
                ray.shutdown()

    def _run(self, ray: Any, sweep: Sweep) -> Iterator[Record]:
        self._check_room(ray)
        packed = {known: ray.put(pack(path)) for known, path in sweep.inputs.items()}
        task = ray.remote(_on_worker)
        running: dict[Any, Trial] = {}
        while True:
            for trial in sweep.ready():
                if len(running) >= self._room(ray):
                    break
                needs = sweep.give(trial)
                running[self._start(ray, task, trial, needs, packed, sweep.device)] = trial
            if not running:
                return
            done, _ = ray.wait(list(running), num_returns=1)
            for reference in done:
                trial = running.pop(reference)
                yield self._brought_home(ray, reference, trial, sweep, packed)

    def _room(self, ray: Any) -> int:
        """How many trials are worth handing out; nodes may come and go."""
        fits = sum(self._fits(node) for node in _nodes(ray))
        return max(1, fits) * self.waiting

    def _fits(self, node: Mapping[str, float]) -> int:
        asked = {"CPU": self.num_cpus, "GPU": self.num_gpus}
        return int(min((node.get(name, 0) // much for name, much in asked.items() if much), default=1))

    def _check_room(self, ray: Any) -> None:
        """A trial that no node can hold would wait for ever."""
        nodes = _nodes(ray)
        if not any(self._fits(node) for node in nodes):
            most = [max((node.get(name, 0) for node in nodes), default=0) for name in ("CPU", "GPU")]
            raise StoreError(
                f"A trial asks for {self.num_cpus:g} cores and {self.num_gpus:g} GPUs; no node of the cluster has more "
                f"than {most[0]:g} and {most[1]:g}. Ask for less, or add nodes."
            )

    def _start(
        self, ray: Any, task: Any, trial: Trial, needs: Mapping[str, Needed], packed: dict[str, Any], device: str
    ) -> Any:
        for key, need in zip(trial.needs.values(), needs.values(), strict=True):
            if key not in packed:
                packed[key] = ray.put(pack(need.folder))
        given = {known: packed[known] for known in trial.params.get("inputs", {}).values()}
        handed = {name: (key, dict(needs[name].result), [packed[key]]) for name, key in trial.needs.items()}
        wrapped = {known: [reference] for known, reference in given.items()}  # in lists: fetched only where needed
        cores = self.num_cpus
        if trial.work in alone:  # all the cores of a node: Ray then runs nothing beside it there
            cores = max(cores, *(node.get("CPU", 0) for node in _nodes(ray)))
        ways = {"num_cpus": cores, "num_gpus": self.num_gpus, "max_retries": RETRIES, "retry_exceptions": False}
        return task.options(**ways).remote(trial.to_dict(), handed, wrapped, list(self.modules), device)

    def _brought_home(self, ray: Any, reference: Any, trial: Trial, sweep: Sweep, packed: dict[str, Any]) -> Record:
        try:
            content, archive = ray.get(reference)
        except ray.exceptions.RayError as error:  # the task died as often as it may
            return Record(trial=trial, status="failed", error=f"{type(error).__name__}: {error}")
        folder = sweep.store.work_folder(trial.key())
        unpack(archive, folder)
        return Record.from_dict(content, sweep.store.path(trial.key()))


def _on_worker(
    content: dict[str, Any],
    needs: dict[str, tuple[str, dict[str, Any], list[Any]]],
    inputs: dict[str, list[Any]],
    modules: list[str],
    device: str,
) -> tuple[dict[str, Any], bytes]:
    """Runs in a worker: the record of the trial, and what it wrote."""
    for module in modules:
        importlib.import_module(module)
    trial = Trial.from_dict(content)
    places = {name: Needed(_placed(key, references), result) for name, (key, result, references) in needs.items()}
    given = {known: _placed(known, references) for known, references in inputs.items()}
    with tempfile.TemporaryDirectory(prefix="headprune-trial-") as folder:
        record = perform(trial, Path(folder) / "work", places, given, device)
        return record.to_dict(), pack(Path(folder) / "work")


def _placed(key: str, references: list[Any]) -> Path:
    """Unpacked once per node and session, however many workers there are."""
    import ray
    from filelock import FileLock

    context = ray.get_runtime_context()
    node = _node_folder(context.get_job_id(), context.get_node_id())
    node.mkdir(parents=True, exist_ok=True)
    place = node / key
    with FileLock(node / f"{key}.lock"):
        if not place.is_dir():
            unpack(ray.get(references[0]), place)
    alone = place / _ALONE
    return next(iter(alone.iterdir())) if alone.is_dir() else place


_ALONE = ".headprune-file"  # holds an input that is a single file


def pack(path: Path) -> bytes:
    """A folder, or a single file, as one archive."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", dereference=True) as archive:
        if path.is_file():
            archive.add(path, arcname=f"{_ALONE}/{path.name}")
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


def _node_folder(job: str, node: str) -> Path:
    return Path(tempfile.gettempdir()) / f"headprune-ray-{job}" / node


def _tidy(ray: Any) -> None:
    """Every node forgets what was unpacked there for this job."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    with contextlib.suppress(ray.exceptions.RayError):  # a node that is gone has nothing to tidy
        job = ray.get_runtime_context().get_job_id()
        places = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in ray.nodes() if node["Alive"]]
        forget = ray.remote(_forget)
        ways = {"num_cpus": 0, "max_retries": 0}
        asked = [forget.options(**ways, scheduling_strategy=place).remote(job) for place in places]
        ray.wait(asked, num_returns=len(asked), timeout=TIDY_SECONDS)


def _forget(job: str) -> None:
    import ray

    node = _node_folder(job, ray.get_runtime_context().get_node_id())
    shutil.rmtree(node, ignore_errors=True)
    with contextlib.suppress(OSError):  # another node of this machine may have its own beside it
        node.parent.rmdir()


def _nodes(ray: Any) -> list[Mapping[str, float]]:
    """What every living node has."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def _connect(ray: Any, address: str | None) -> None:
    try:
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        ray.init(address=address or "local", **options, **({"include_dashboard": False} if address is None else {}))
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise StoreError(
            f"The Ray cluster at '{address or 'this machine'}' cannot be reached: {error}. Start one with `ray start "
            "--head`, and give its address with --address."
        ) from error


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError("The runner 'ray' needs Ray: pip install 'headprune[ray]'.") from error
    return ray
