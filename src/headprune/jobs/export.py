"""`export`: a pruned model for places where headprune is not installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from torch import nn

from headprune.checkpoint.export import export_checked, names_file
from headprune.checkpoint.exports import Checked, Format, exports
from headprune.checkpoint.load_model import load_model
from headprune.checkpoint.out_folder import check_companions, check_writable, new_model_folder, open_out
from headprune.errors import CheckpointError
from headprune.jobs.job import SILENT, Progress
from headprune.jobs.options.export import ExportOptions
from headprune.tasks.corpus import beginnings


@dataclass(frozen=True)
class Exported:
    """Where the model went, how large its weights are, and what comparing it with the model found."""

    format: str
    bytes: int
    out: Path
    checks: Mapping[str, float] = field(default_factory=dict)
    told: Sequence[str] = ()
    version: ClassVar[int] = 1

    def to_dict(self) -> dict[str, Any]:
        return {"format": self.format, "bytes": self.bytes, "out": str(self.out), "checks": dict(self.checks),
                "told": list(self.told)}  # fmt: skip

    def message(self) -> str:
        size = f"{self.format}: {self.bytes / 1e6:.3g} MB of weights; loads without headprune from {self.out}"
        return "\n".join([*self.told, size])


def export(options: ExportOptions, progress: Progress = SILENT) -> Exported:
    """Write a pruned model so that it loads without headprune."""
    kind = options.kind
    chosen = exports[kind]  # an unknown one is told before a model is loaded
    if names_file(chosen, options.out):
        check_new_file(options.out, force=options.force)
        return as_file(_loaded(options), options.out, kind, **_asked(options))
    out = open_out("export", options, holds_model=True, beside=not chosen.weights.endswith("safetensors"))
    found = Checked(told=("as it was made before: nothing is left to do",))
    if not out.is_finished:
        check_companions(Path(options.model))
        model = _loaded(options)
        with new_model_folder(out.path, Path(options.model)) as new:
            _, found = export_checked(model, new, kind, **_asked(options))
            out.note(new)
    return Exported(kind, _size(chosen, out.path), out.path, found.figures, found.told)


@dataclass(frozen=True)
class Wanted:
    """A format in one word, as another command is asked for it: gguf:q8_0, onnx:int8, plain."""

    kind: str
    asked: Mapping[str, Any]

    @classmethod
    def parse(cls, text: str, corpus: Sequence[Path] | None = None) -> Wanted:
        """The format, and after a colon how its weights are stored; `corpus` is what it may be compared on."""
        kind, _, how = text.partition(":")
        options = exports[kind].options
        asked: dict[str, Any] = {"texts": beginnings(corpus)} if corpus and "texts" in options else {}
        if how and "quantize" in options:
            asked["quantize"] = how
        elif how == "int8" and "int8" in options:
            asked["int8"] = True
        elif how:
            raise CheckpointError(
                f"--export {text}: {kind} has no weights of the kind '{how}'. Expected a format alone, gguf:KIND "
                "(f32, f16, q8_0, …), onnx:int8 or openvino:int8."
            )
        return cls(kind, asked)

    def check(self, out: Path, *, force: bool) -> bool:
        """Before the work: whether it is a file that is written, which may be put there."""
        is_file = names_file(exports[self.kind], out)
        if is_file:
            check_new_file(out, force=force)
        elif not force and out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise CheckpointError(f"'{out}' is there already. Choose another --out, or say --force to replace it.")
        return is_file

    def write(self, model: nn.Module, source: Path, out: Path, *, is_file: bool) -> Exported:
        if is_file:
            return as_file(model, out, self.kind, **self.asked)
        with new_model_folder(out, source) as new:
            _, found = export_checked(model, new, self.kind, **self.asked)
        return Exported(self.kind, _size(exports[self.kind], out), out, found.figures, found.told)


def as_file(model: nn.Module, out: Path, kind: str, **asked: Any) -> Exported:
    """A model as the one file that its format makes."""
    _, found = export_checked(model, out, kind, **asked)
    return Exported(kind, out.stat().st_size, out, found.figures, found.told)


def check_new_file(file: Path, *, force: bool) -> None:
    """Before the work: a file may be put there."""
    if file.is_dir():
        raise CheckpointError(f"'{file}' is a folder; expected the name of a file to write.")
    if file.exists() and not force:
        raise CheckpointError(f"'{file}' exists. Choose another --out, or say --force to replace it.")
    check_writable(file.absolute().parent)


def _loaded(options: ExportOptions) -> nn.Module:
    return load_model(options.model, options.device, trust_remote_code=options.trust_remote_code)


def _asked(options: ExportOptions) -> dict[str, Any]:
    """What was said; a format is not told of options that were left alone."""
    said = {"int8": options.int8, "quantize": options.quantize, "pre_tokenizer": options.pre_tokenizer,
            "unchecked": options.unchecked, "texts": beginnings(options.corpus or [])}  # fmt: skip
    return {name: value for name, value in said.items() if value}


def _size(chosen: Format, folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob(chosen.weights))
