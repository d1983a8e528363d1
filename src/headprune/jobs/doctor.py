"""`doctor`: what is installed here, and does it work?

torch, transformers and what needs them are imported inside: where they are broken, the doctor must still speak.
"""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any, ClassVar

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from headprune.jobs.job import SILENT, Progress
from headprune.jobs.options.doctor import DoctorOptions
from headprune.typed_json import to_plain

EXTRAS = {  # what each is for, in a word or two
    "tasks": "data, metrics, training",
    "report": "pictures and pages",
    "ray": "clusters",
    "onnx": "ONNX files",
    "gguf": "files for llama.cpp",
    "openvino": "files for OpenVINO",
    "demo": "a small model and reviews",
}
CORE = ("torch", "transformers", "safetensors", "numpy", "scipy")
SETTINGS = ("HEADPRUNE_DATA", "HF_HUB_OFFLINE")


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """Versions by package (None: not installed), what extras lack, devices, settings, and what does not work."""

    headprune: str
    python: str
    system: str
    packages: Mapping[str, str | None]
    extras: Mapping[str, tuple[str, ...]]
    settings: Mapping[str, str]
    devices: Mapping[str, str]
    problems: tuple[str, ...]
    version: ClassVar[int] = 1

    @property
    def failed(self) -> bool:
        return bool(self.problems)

    def to_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = to_plain(self)
        return found

    def message(self) -> str:
        rows = [("headprune", self.headprune), ("python", f"{self.python} on {self.system}")]
        rows += [(name, number or "not installed") for name, number in self.packages.items()]
        for name, lacking in self.extras.items():
            missing = f"not installed (lacks {', '.join(lacking)}): pip install 'headprune[{name}]'"
            rows.append((f"[{name}]", f"{EXTRAS[name]}: {missing if lacking else 'installed'}"))
        rows += [*self.devices.items(), *self.settings.items()]
        width = max(len(name) for name, _ in rows)
        lines = [f"{name:{width}}  {value}" for name, value in rows]
        problems = [f"problem: {text}" for text in self.problems]
        return "\n".join([*lines, "", *(problems or ["everything works: a tiny model was pruned, saved and loaded"])])


def doctor(options: DoctorOptions, progress: Progress = SILENT) -> Diagnosis:
    """Look at versions, devices and extras, and try everything that pruning needs on a tiny model."""
    with progress.steps(3) as step:
        step("versions")
        packages = {name: _version(name) for name in CORE}
        extras = {name: tuple(_missing(name)) for name in EXTRAS}
        step("devices")
        devices = _devices()
        step("finding, pruning, saving and loading a tiny model")
        problems = (*_outdated(), *_trial())
    return Diagnosis(
        headprune=_version("headprune") or "not installed", python=platform.python_version(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}", packages=packages, extras=extras,
        settings={name: os.environ[name] for name in SETTINGS if name in os.environ}, devices=devices,
        problems=problems,
    )  # fmt: skip


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _missing(extra: str) -> list[str]:
    """Packages of an extra that are not installed, those of extras within it included."""
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
    told = []
    for text in requires("headprune") or ():
        one = Requirement(text)
        here = _version(one.name)
        if one.marker is None and (here is None or not one.specifier.contains(here, prereleases=True)):
            told.append(f"{one.name} is {here or 'not installed'}; headprune {_version('headprune')} needs "
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
    try:
        import torch
        from transformers import AutoModel, BertConfig, BertModel

        from headprune.checkpoint.load_model import quiet_transformers
        from headprune.heads import HeadMask
        from headprune.structure.find import find_heads
        from headprune.surgery.prune import prune_

        quiet_transformers()
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
