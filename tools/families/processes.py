"""Many types, one process each: a crash or a type that never ends is that type's result."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tools.families.families import verify_type

from headprune.checkpoint.load_model import quiet_transformers
from headprune.model_checks import Verdict

LIMIT = 240.0  # seconds a type, on a machine that may be busy


@dataclass
class _Job:
    model_type: str
    process: Any
    answer: Any
    begun: float


def verify_types(
    types: Iterable[str], *, workers: int = 2, limit: float = LIMIT, done: Callable[[str, Verdict], None] | None = None
) -> dict[str, Verdict]:
    """Verify types in parallel; `done` hears of each as it ends."""
    waiting, results = list(types)[::-1], {}
    running: list[_Job] = []
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tools.families.preload"])  # what takes seconds to import is imported once
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                running.append(_start(context, waiting.pop()))
            multiprocessing.connection.wait([job.process.sentinel for job in running], timeout=1.0)
            for job in list(running):
                family = _outcome(job, limit)
                if family is not None:
                    running.remove(job)
                    results[job.model_type] = family
                    if done is not None:
                        done(job.model_type, family)
    finally:
        for job in running:
            job.process.kill()
    return dict(sorted(results.items()))


def _start(context: Any, model_type: str) -> _Job:
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=_verify, args=(model_type, send), daemon=True)
    process.start()
    send.close()
    return _Job(model_type, process, receive, time.monotonic())


def _outcome(job: _Job, limit: float) -> Verdict | None:
    """What became of a process; None while it runs."""
    if job.answer.poll():
        with contextlib.suppress(EOFError):
            family = Verdict.from_dict(job.answer.recv())
            job.process.join()
            return family
    if not job.process.is_alive():
        job.process.join()
        return Verdict("failed", f"the process ended with {job.process.exitcode} and no answer")
    if time.monotonic() - job.begun > limit:
        job.process.kill()
        job.process.join()
        return Verdict("failed", f"took longer than {limit:.0f} s")
    return None


def _verify(model_type: str, send: Any) -> None:
    import torch

    torch.set_num_threads(1)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    quiet_transformers()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        family = verify_type(model_type)
    send.send(family.to_dict())
