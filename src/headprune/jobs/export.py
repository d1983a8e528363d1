"""`export`: a pruned model for places where headprune is not installed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from headprune.checkpoint.export import export as export_model
from headprune.checkpoint.exports import exports
from headprune.checkpoint.load_model import load_model
from headprune.checkpoint.out_folder import check_companions, new_model_folder, open_out
from headprune.jobs.job import SILENT, Progress
from headprune.jobs.options.export import ExportOptions


@dataclass(frozen=True)
class Exported:
    """Where the model went, and how large its weights are."""

    format: str
    bytes: int
    out: Path
    version: ClassVar[int] = 1

    def to_dict(self) -> dict[str, Any]:
        return {"format": self.format, "bytes": self.bytes, "out": str(self.out)}

    def message(self) -> str:
        return f"{self.format}: {self.bytes / 1e6:.3g} MB of weights; loads without headprune from {self.out}"


def export(options: ExportOptions, progress: Progress = SILENT) -> Exported:
    """Write a pruned model so that it loads without headprune."""
    kind = options.kind
    weights = exports[kind].weights  # an unknown one is told before a model is loaded
    out = open_out("export", options, holds_model=True, beside=kind == "onnx")  # it may lie beside the weights
    if not out.is_finished:
        check_companions(Path(options.model))
        model = load_model(options.model, options.device, trust_remote_code=options.trust_remote_code)
        with new_model_folder(out.path, Path(options.model)) as new:
            export_model(model, new, kind, int8=options.int8)
            out.note(new)
    return Exported(kind, sum(path.stat().st_size for path in out.path.glob(weights)), out.path)
