"""Python programs in processes of their own that need not import torch and transformers first: a server that has them
is forked for each. What a program sees is its own: words, folder, environment, streams, exit code. headprune is not
imported before."""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
SERVER = "TESTS_PROGRAM_SERVER"  # the variable by which a stand-in on the PATH finds the server
# What commands import sooner or later, and what takes long: all of it by others.
HEAVY = ("torch", "transformers", "transformers.trainer", "transformers.models.auto.modeling_auto", "accelerate",
         "datasets", "sklearn.metrics", "scipy.stats", "sacrebleu", "plotly.graph_objects")  # fmt: skip

STAND_IN = """#!{python} -ES
import sys
sys.path.insert(0, {root!r})
from tests.programs import stand_in
sys.exit(stand_in({words!r}))
"""


def begin(server: str, words: Sequence[str], folder: str, environment: Mapping[str, str],
          streams: Sequence[int]) -> socket.socket:  # fmt: skip
    """Start `python WORDS` with the streams for its input, output and errors; `exit_code` waits for its end."""
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    line.connect(server)
    asked = json.dumps({"words": list(words), "folder": folder, "environment": dict(environment)}).encode()
    socket.send_fds(line, [len(asked).to_bytes(4, "big")], list(streams))
    line.sendall(asked)
    return line


def exit_code(line: socket.socket) -> int:
    """The program's, negative for a signal, as subprocess has it."""
    with line, line.makefile() as answer:
        return int(answer.readline())


def stand_in(words: Sequence[str]) -> int:
    """The program of that name on the PATH of a shell."""
    return exit_code(begin(os.environ[SERVER], [*words, *sys.argv[1:]], str(Path.cwd()), os.environ, (0, 1, 2))) % 256


def _read_exactly(line: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        found += line.recv(count - len(found))
    return found


def _become(line: socket.socket) -> list[str]:
    """This process is now the one that was asked for, all but its code; what it should run."""
    size, streams, _, _ = socket.recv_fds(line, 4, 3)
    asked = json.loads(_read_exactly(line, int.from_bytes(size, "big")))
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    return asked["words"]


def _serve(place: str) -> list[str]:
    """Words to run, in a fork for each program; the server itself ends with its standard input."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
        door.bind(place)
        door.listen()
        print("ready", flush=True)  # noqa: T201
        while door in select.select([door, sys.stdin], [], [])[0]:
            line, _ = door.accept()
            if not os.fork():  # waits for the program, so that the server need not
                program = os.fork()
                if not program:
                    return _become(line)
                code = os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])
                with contextlib.suppress(BrokenPipeError):
                    line.sendall(f"{code}\n".encode())
                os._exit(0)
            line.close()
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
    with contextlib.suppress(ChildProcessError):
        while os.wait():
            pass
    raise SystemExit


def _run(words: Sequence[str]) -> None:
    """As `python WORDS` would."""
    if words[0] == "-u":  # nothing is held back: launchers ask for it
        _run(words[1:])
    elif words[0] == "-c":
        sys.argv, sys.path[0] = ["-c", *words[2:]], ""
        exec(compile(words[1], "<string>", "exec"), {"__name__": "__main__"})
    elif words[0] == "-m":
        sys.argv, sys.path[0] = list(words[1:]), str(Path.cwd())
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[0] = list(words), str(Path(words[0]).parent)
        runpy.run_path(words[0], run_name="__main__")


def _run_and_end(words: Sequence[str]) -> None:
    """To take down all that is imported would take longer than most programs: what they left to do is done, no more."""
    code: object = 0
    try:
        _run(words)
    except SystemExit as end:
        code = end.code
        if isinstance(code, str):
            print(code, file=sys.stderr)  # noqa: T201
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def main(place: str) -> None:
    """The server, and then every program."""
    for name in HEAVY:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # what is never collected is never copied
    _run_and_end(_serve(place))


class Programs:
    """A running server; `folder` holds what it leaves."""

    def __init__(self, folder: Path) -> None:
        self._place = tempfile.mkdtemp(prefix="programs-")  # short: the name of a socket has at most 100 letters
        self._socket = f"{self._place}/socket"
        self.path = folder / "bin"
        self.path.mkdir(parents=True)
        for name, words in (("headprune", ["-m", "headprune"]), ("python", [])):
            script = self.path / name
            script.write_text(STAND_IN.format(python=sys.executable, root=str(ROOT), words=words))
            script.chmod(0o755)
        self._own = {SERVER: self._socket, "HF_MODULES_CACHE": str(folder / "modules")}
        self._server = subprocess.Popen(
            [sys.executable, "-c", f"from tests.programs import main; main({self._socket!r})"],
            cwd=ROOT, env={**os.environ, **self._own}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._server.stdout.readline() == "ready\n"

    def environment(self, **more: str) -> dict[str, str]:
        """For a shell whose `headprune` and `python` are forks of the server."""
        return {**os.environ, **self._own, "PATH": f"{self.path}:{os.environ['PATH']}", **more}

    def launch(self, launcher: str, *words: object) -> subprocess.CompletedProcess[str]:
        """`python -m LAUNCHER WORDS` by torch's own launcher, whose workers are forks of the server, too."""
        return self.run("-m", launcher, *words, PYTHON_EXEC=str(self.path / "python"))

    def begin(self, *words: object, streams: Sequence[int], **more: str) -> socket.socket:
        """`python WORDS` with these streams; the end of it is `exit_code`."""
        return begin(
            self._socket, [str(word) for word in words], str(Path.cwd()), {**os.environ, **self._own, **more}, streams
        )

    def run(self, *words: object, cwd: Path | None = None, **more: str) -> subprocess.CompletedProcess[str]:
        """What `subprocess.run([python, *words])` would give, with more variables."""
        words, place = [str(word) for word in words], str(cwd or Path.cwd())
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err, open(os.devnull) as none:  # noqa: PTH123
            streams = (none.fileno(), out.fileno(), err.fileno())
            code = exit_code(begin(self._socket, words, place, {**os.environ, **self._own, **more}, streams))
            out.seek(0)
            err.seek(0)
            return subprocess.CompletedProcess(words, code, out.read(), err.read())

    def close(self) -> None:
        """The end of the server, when its last program has ended."""
        self._server.stdin.close()
        self._server.wait(60)
        self._server.stdout.close()
        Path(self._socket).unlink()
        Path(self._place).rmdir()
