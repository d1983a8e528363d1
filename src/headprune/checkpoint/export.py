"""`export`: a pruned model for places where headprune is not installed."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from torch import nn

from headprune.checkpoint import config_entry
from headprune.checkpoint.exports import Checked, Format, exports
from headprune.checkpoint.pretrained import model_card, save_beside
from headprune.errors import CheckpointError
from headprune.types import Batch


def export(
    model: nn.Module,
    folder: str | Path,
    format: str = "plain",  # noqa: A002
    *,
    example: Batch | None = None,
    int8: bool = False,
    **options: object,
) -> Path:
    """Write a pruned model so that it loads without headprune.

    `standalone`: the checkpoint carries a modelling file of its own; load it with `trust_remote_code=True`. Any heads
    that `prune_` can remove, in a class of transformers that its Auto classes know.
    `plain`: an ordinary checkpoint whose config has the smaller numbers. It needs the same number of heads in every
    layer (`select(..., per="site")`) and a family whose config can say how wide a head is (Llama, Mistral, Qwen, Gemma,
    T5 …); anything else is refused with the reason.
    `onnx`: `model.onnx` for onnxruntime and others, one forward pass without a cache, with free batch size and length,
    compared with the model by running it; `int8=True` writes `model.int8.onnx`, too (weights quantised).
    `openvino`: `openvino_model.xml`, the same for OpenVINO, by its own converter; `int8=True` by nncf.
    `gguf`: for llama.cpp, with other heads and neurons in every layer (Llama, SmolLM2, Mistral without a window, Qwen2
    and what has the same graph); `quantize="q8_0"` and others. A real llama.cpp opens it and must agree with the model.
    For a format that is one file, `folder` may be a file's name: `hp.export(model, "small.gguf", format="gguf")`.
    `example` is a batch to check it on, where none can be made; `options` are those of a format of your own.

    Example:
        >>> mask = hp.HeadMask.full(hp.find_heads(model)).without("encoder.0:1")
        >>> hp.export(hp.prune_(model, mask), "anywhere", format="standalone").name
        'anywhere'
    """
    return export_checked(model, folder, format, example=example, **options, **({"int8": True} if int8 else {}))[0]


def export_checked(
    model: nn.Module,
    folder: str | Path,
    format: str,  # noqa: A002
    *,
    example: Batch | None = None,
    **asked: object,
) -> tuple[Path, Checked]:
    """`export`, with what comparing the written file with the model found."""
    chosen, target = exports[format], Path(folder)
    for name in asked:
        if name not in chosen.options:
            others = [other for other in exports if name in exports[other].options]
            raise CheckpointError(
                f"{name} is for the format {' or '.join(others)}; {format} does not take it."
                if others
                else f"No format has an option called '{name}'. {format} takes {', '.join(chosen.options) or 'none'}."
            )
    if names_file(chosen, target):
        return target, _write_file(target, chosen, lambda place: chosen.write(model, place, example, **asked))
    if target.exists() and not target.is_dir():
        raise CheckpointError(f"'{target}' is a file; expected a folder to write to.")
    entry = config_entry.read(model)
    found: list[Checked | None] = []

    def card(before: str) -> str:
        return before if entry is None else model_card(entry, before, loading=chosen.loading)

    save_beside(target.resolve(), lambda place: found.append(chosen.write(model, place, example, **asked)), card)
    return target, found[0] or Checked()


def names_file(chosen: Format, target: Path) -> bool:
    """Whether a target is the name of the one file that a format makes."""
    return bool(chosen.file) and target.suffix == Path(chosen.file).suffix


def _write_file(target: Path, chosen: Format, write: Callable[[Path], Checked | None]) -> Checked:
    """Made in a folder beside the target, and moved to it when it is whole and compared."""
    if target.is_dir():
        raise CheckpointError(f"'{target}' is a folder; expected the name of a file to write.")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as place:
        found = write(Path(place))
        (Path(place) / chosen.file).replace(target)
    return found or Checked()
