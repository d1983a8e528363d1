"""Kinds of work that only tests need, in a module that workers of a cluster can import."""

from __future__ import annotations

import os
import time
from pathlib import Path

from headprune.lab.experiments.work import work


@work("timed", alone=True)
def timed(context):
    """Says where and when it ran."""
    return _where(float(context.params["options"]["seconds"]))


@work("where")
def where(context):
    """The same, and need not be alone."""
    return _where(float(context.params["options"]["seconds"]))


def _where(seconds):
    import ray

    begun = time.time()
    time.sleep(seconds)
    return {"node": ray.get_runtime_context().get_node_id(), "begun": begun, "ended": time.time()}


@work("slow")
def slow(context):
    """Notes that it ran, waits, writes a file, and adds up what it needs."""
    options = context.params["options"]
    with Path(options["calls"]).open("a") as file:
        file.write(f"{options['number']}\n")
    time.sleep(options.get("seconds", 0.0))
    if options.get("fails"):
        raise ValueError("it was told to")
    before = sum(int((need.folder / "number.txt").read_text()) for need in context.needs.values())
    (context.folder / "number.txt").write_text(str(options["number"] + before))
    read = sorted(path.name for path in context.inputs["data"].iterdir() if path.suffix) if context.inputs else []
    return {"number": options["number"] + before, "read": read, "process": os.getpid()}
