"""`headprune doctor`: what is installed here, and does it work?"""

from __future__ import annotations

import json as json_module
import os
import platform
from pathlib import Path
from typing import Any

import typer

from headprune import __version__
from headprune.cli.options import Json, progress

EXTRAS = {  # what each is for, in a word or two
    "tasks": "data, metrics, training",
    "report": "pictures and pages",
    "ray": "clusters",
    "onnx": "ONNX files",
    "demo": "a small model and reviews",
}
CORE = ("torch", "transformers", "safetensors", "numpy", "scipy")


def doctor(json: Json = False) -> None:
    """Show versions, devices and extras, and try everything that pruning needs on a tiny model."""
    with progress(3) as step:
        step("versions")
        found: dict[str, Any] = {
            "headprune": __version__, "python": platform.python_version(),
            "system": f"{platform.system()} {platform.release()} {platform.machine()}",
            "packages": {name: _version(name) for name in CORE},
            "extras": {name: _missing(name) for name in EXTRAS},
            "settings": {name: os.environ[name] for name in ("HEADPRUNE_DATA", "HF_HUB_OFFLINE") if name in os.environ},
        }  # fmt: skip
        step("devices")
        found["devices"] = _devices()
        step("finding, pruning, saving and loading a tiny model")
        found["problems"] = [*_outdated(), *_trial()]
    typer.echo(json_module.dumps(found, indent=1) if json else _text(found))
    if found["problems"]:
        raise typer.Exit(1)


def _version(name: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _missing(extra: str) -> list[str]:
    """Packages of an extra that are not installed, those of extras within it included."""
    from importlib.metadata import requires

    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    lacking: list[str] = []
    for text in requires("headprune") or ():
        one = Requirement(text)
        if one.marker is None or one.marker.evaluate({"extra": ""}) or not one.marker.evaluate({"extra": extra}):
            continue
        if canonicalize_name(one.name) == "headprune":
            lacking += [name for inner in sorted(one.extras) for name in _missing(inner)]
        elif _version(one.name) is None:
            lacking.append(one.name)
    return lacking


def _outdated() -> list[str]:
    """Core packages whose version our metadata does not allow."""
    from importlib.metadata import requires

    from packaging.requirements import Requirement

    told = []
    for text in requires("headprune") or ():
        one = Requirement(text)
        here = _version(one.name)
        if one.marker is None and (here is None or not one.specifier.contains(here, prereleases=True)):
            told.append(f"{one.name} is {here or 'not installed'}; headprune {__version__} needs "
                        f"{one.specifier}: pip install '{one.name}{one.specifier}'")  # fmt: skip
    return told


def _devices() -> dict[str, str]:
    import torch

    found = {"cpu": f"{os.cpu_count()} cores, {torch.get_num_threads()} threads"}
    for number in range(torch.cuda.device_count()):
        memory = torch.cuda.get_device_properties(number).total_memory / 2**30
        found[f"cuda:{number}"] = f"{torch.cuda.get_device_name(number)}, {memory:.0f} GiB"
    if torch.backends.mps.is_available():
        found["mps"] = "Apple"
    return found


def _trial() -> list[str]:
    """What does not work when a tiny model is pruned, saved and loaded."""
    import tempfile

    from headprune.checkpoint.load_model import quiet_transformers

    quiet_transformers()
    try:
        import torch
        from transformers import AutoModel, BertConfig, BertModel

        from headprune.heads import HeadMask
        from headprune.structure import find_heads
        from headprune.surgery.prune import prune_

        sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32}
        model = BertModel(BertConfig(vocab_size=50, **sizes)).eval()
        words = torch.tensor([[5, 6, 7]])
        prune_(model, HeadMask.full(find_heads(model)).without("encoder.0:1", "encoder.1"))
        with tempfile.TemporaryDirectory() as folder, torch.no_grad():
            model.save_pretrained(Path(folder))
            again = AutoModel.from_pretrained(folder).eval()
            gap = float((model(words).last_hidden_state - again(words).last_hidden_state).abs().max())
        return [] if gap == 0.0 else [f"a pruned model answers otherwise after it was saved and loaded (by {gap:.1e})"]
    except Exception as error:  # whatever is wrong with this installation is what the command is for
        return [f"a tiny model could not be pruned, saved and loaded: {type(error).__name__}: {error}"]


def _text(found: dict[str, Any]) -> str:
    rows = [("headprune", found["headprune"]), ("python", f"{found['python']} on {found['system']}")]
    rows += [(name, number or "not installed") for name, number in found["packages"].items()]
    for name, lacking in found["extras"].items():
        state = (
            f"not installed (lacks {', '.join(lacking)}): pip install 'headprune[{name}]'" if lacking else "installed"
        )
        rows.append((f"[{name}]", f"{EXTRAS[name]}: {state}"))
    rows += list(found["devices"].items()) + list(found["settings"].items())
    width = max(len(name) for name, _ in rows)
    lines = [f"{name:{width}}  {value}" for name, value in rows]
    problems = [f"problem: {text}" for text in found["problems"]]
    return "\n".join([*lines, "", *(problems or ["everything works: a tiny model was pruned, saved and loaded"])])
