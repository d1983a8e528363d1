"""What a loader may not do, noticed while it runs: write or read elsewhere, run code, take too long or too much.

Python tells an audit hook of every file that is opened, module that is imported and text that is compiled (PEP 578).
A hook cannot be taken off again, so it looks only between `Watch.__enter__` and `__exit__`.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import sysconfig
import time
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

# Code and data that are installed: imports that are put off until they are needed read these.
INSTALLED = tuple(
    {os.path.realpath(p) for p in (*sysconfig.get_paths().values(), sys.prefix, sys.base_prefix)}
    | {str(Path(__file__).resolve().parents[2] / "src")}
)
SYSTEM = ("/proc/", "/sys/", "/dev/null", "/dev/urandom", "/etc/", "/usr/")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
MOVING = {
    "os.chmod", "os.chown", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.symlink", "os.truncate",
    "os.utime", "shutil.rmtree", "shutil.move", "shutil.copyfile",
}  # fmt: skip
RUNNING = (
    "os.system", "os.exec", "os.fork", "os.posix_spawn", "os.spawn", "subprocess.Popen", "pty.spawn", "socket.connect",
    "socket.bind", "socket.getaddrinfo", "socket.gethostbyname", "pickle.find_class", "marshal.load", "code.__new__",
    "ctypes.dlopen", "urllib.Request", "webbrowser.open",
)  # fmt: skip
MEMORY = 256 << 20  # bytes that one input may make the process grow by
ADDRESSES = 4 << 30  # bytes of address space beyond what is in use: a larger request fails at once


class TimeLimitError(BaseException):
    """Not an Exception: code that catches those must not swallow it."""


class Watch:
    """What happened while it was entered, as `seen`: one line for each thing that may not happen."""

    current: Watch | None = None

    def __init__(self, folder: Path, seconds: float) -> None:
        self.folder, self.seconds = os.path.realpath(folder), seconds
        self.seen: list[str] = []

    def __enter__(self) -> Watch:
        _install()
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak of earlier inputs
        self._memory = _status("VmRSS")
        self._limits = resource.getrlimit(resource.RLIMIT_AS)
        most = self._limits[1]
        wanted = _status("VmSize") + ADDRESSES
        resource.setrlimit(resource.RLIMIT_AS, (wanted if most < 0 else min(wanted, most), most))
        self._handler = signal.signal(signal.SIGALRM, _stop)
        signal.setitimer(signal.ITIMER_REAL, self.seconds)
        self._start = time.monotonic()
        Watch.current = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        Watch.current = None
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._handler)
        resource.setrlimit(resource.RLIMIT_AS, self._limits)
        took = time.monotonic() - self._start
        if took > self.seconds:
            self.seen.append(f"time: {took:.1f} s")
        grown = _status("VmHWM") - self._memory
        if grown > MEMORY:
            self.seen.append(f"memory: {grown >> 20} MiB more")

    def notice(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = arguments
            if not isinstance(path, int) and not _is_in_an_open_folder(path, mode):
                writes = bool((flags or 0) & WRITING) or (isinstance(mode, str) and any(c in mode for c in "wax+"))
                self._place(path, "write" if writes else "read")
        elif event in MOVING:
            if event in ("os.remove", "os.rmdir") and isinstance(arguments[-1], int) and arguments[-1] >= 0:
                return  # a name in a folder that is open, as when a tree is removed
            touched = arguments[1:] if event == "os.symlink" else arguments  # a link touches nothing but its own place
            for path in [one for one in touched if isinstance(one, str | bytes | os.PathLike)]:
                self._place(path, event)
        elif event.startswith(RUNNING) and not (event == "marshal.loads" and _is_import(sys._getframe(1))):
            self.seen.append(f"{event}: {str(arguments)[:200]}")
        elif event == "import":
            top = str(arguments[0]).partition(".")[0]
            known = top in sys.modules or top in sys.stdlib_module_names
            if not known and not _is_import(sys._getframe(1)):  # what a library looks for itself is its own affair
                self.seen.append(f"import: {arguments[0]}")
        elif event in ("compile", "exec"):
            code = arguments[0] if event == "exec" else arguments[1]
            name = getattr(code, "co_filename", code)
            if not _is_installed(str(name)) and not _is_import(sys._getframe(1)):
                self.seen.append(f"{event}: {str(name)[:200]}")

    def _place(self, path: Any, what: str) -> None:
        try:
            text = os.path.realpath(os.fsdecode(path))
        except (ValueError, TypeError):  # a NUL inside: it will not be opened either
            return
        inside = text == self.folder or text.startswith(self.folder + os.sep)
        if inside or text == os.devnull or (what == "read" and (_is_installed(text) or text.startswith(SYSTEM))):
            return
        self.seen.append(f"{what}: {text}")


def _is_in_an_open_folder(path: Any, mode: Any) -> bool:
    """Whether a name is one in a folder that is already open, as when a tree is removed: the hook is not told which."""
    text = os.fsdecode(path)
    return mode is None and not Path(text).is_absolute() and not os.path.lexists(text)


def _is_installed(path: str) -> bool:
    if path.startswith("<frozen "):
        return True
    return path.startswith(os.sep) and os.path.realpath(path).startswith(INSTALLED)


def _is_import(frame: FrameType | None) -> bool:
    """Modules that are loaded late may compile on their own: dataclasses and named tuples do."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _status(name: str) -> int:
    """A size of this process in bytes, as Linux tells it: VmRSS now, VmHWM at its peak, VmSize of addresses."""
    text = Path("/proc/self/status").read_text()
    return int(text.partition(f"{name}:")[2].split(maxsplit=1)[0]) << 10


def _stop(number: int, frame: FrameType | None) -> None:
    raise TimeLimitError


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    watch = Watch.current
    if watch is not None:
        Watch.current = None  # looking at a path must not be noticed itself
        try:
            watch.notice(event, arguments)
        finally:
            Watch.current = watch


_installed = False


def _install() -> None:
    global _installed
    if not _installed:
        sys.addaudithook(_audit)
        _installed = True
