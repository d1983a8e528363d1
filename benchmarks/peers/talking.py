"""The other end of worker.py: start a tool's process, ask it for jobs, and give up on one that takes too long."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import threading
from pathlib import Path
from typing import IO, Any

from environments import HERE, python_of


class Worker:
    """A tool in a process of its own. One that dies or is too slow is started again at the next job."""

    def __init__(self, name: str, log: Path) -> None:
        self.name = name
        self.log = log
        self.process: subprocess.Popen[str] | None = None
        self.lines: queue.Queue[str] = queue.Queue()
        self.reader: threading.Thread | None = None

    def ask(self, job: str, timeout: float = 1800, **details: Any) -> dict[str, Any]:
        """The answer; {"error": …} if there is none."""
        process = self._running()
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps({"job": job, **details}) + "\n")
            process.stdin.flush()
        try:
            line = self.lines.get(timeout=timeout)
        except queue.Empty:
            self.stop()
            return {"error": f"Did not finish within {timeout:.0f} s."}
        if not line:
            code = process.wait()
            self.stop()
            return {"error": f"The process ended with code {code}."}
        answer: dict[str, Any] = json.loads(line)
        return answer

    def stop(self) -> None:
        """End the process, if there is one, and close its pipes."""
        if self.process is None:
            return
        self.process.kill()
        self.process.wait()
        if self.reader is not None:
            self.reader.join()
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(BrokenPipeError):
                assert pipe is not None
                pipe.close()
        self.process = None

    def _running(self) -> subprocess.Popen[str]:
        if self.process is None:
            self.lines = queue.Queue()
            with self.log.open("a") as log:
                self.process = subprocess.Popen(
                    [str(python_of(self.name)), str(HERE / "worker.py"), self.name],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
                )  # fmt: skip
            assert self.process.stdout is not None
            self.reader = threading.Thread(target=_read, args=(self.process.stdout, self.lines), daemon=True)
            self.reader.start()
        return self.process


def _read(stream: IO[str], lines: queue.Queue[str]) -> None:
    for line in stream:
        lines.put(line)
    lines.put("")
