"""One tool in a process of its own: a JSON object a line in, one out.

    python worker.py NAME            {"job": "score"} -> {"seconds": 1.23}
    python worker.py NAME --reload   load a saved model and answer, in a fresh process

A job that fails is answered with {"error": "…"}, the tool's own words, and the worker goes on. Whatever tools print
goes to stderr, so that the answers stay apart.
"""

from __future__ import annotations

import os

os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1")

import importlib.util
import json
import sys
import traceback
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).resolve().parent


def tool_named(name: str) -> ModuleType:
    """The file NAME/tool.py, whose folder may be called as the package that it imports."""
    spec = importlib.util.spec_from_file_location(f"peer_{name.replace('-', '_')}", HERE / name / "tool.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    # Folders here are called as packages are, so that this one comes last.
    sys.path.remove(str(HERE))
    sys.path.append(str(HERE))
    import torch

    torch.set_num_threads(1)
    try:
        tool = tool_named(sys.argv[1])
    except Exception as error:
        traceback.print_exc()
        answers.write(json.dumps({"error": f"{type(error).__name__}: {error}"}) + "\n")
        sys.exit(1)
    from jobs import Jobs, reload, told

    if "--reload" in sys.argv:
        reload(tool, Path(sys.argv[3]))
        return
    jobs = Jobs(tool)
    for line in sys.stdin:
        asked = json.loads(line)
        name = asked.pop("job")
        try:
            if name.startswith("_") or not hasattr(jobs, name):
                raise ValueError(f"No job called {name!r}.")
            torch.manual_seed(0)
            answer = getattr(jobs, name)(**asked)
        except Exception as error:
            traceback.print_exc()
            answer = {"error": told(error)}
        answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
