"""`export`: a pruned model for places where headprune is not installed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from headprune.checkpoint import config_entry
from headprune.checkpoint.card import model_card
from headprune.checkpoint.exports.plain import as_plain
from headprune.checkpoint.exports.standalone import save_standalone
from headprune.checkpoint.save import save_beside
from headprune.errors import CheckpointError
from headprune.registry import Registry

Write = Callable[[nn.Module, Path, Mapping[str, Any] | None], None]
formats: Registry[Write] = Registry("format")


def export(
    model: nn.Module,
    folder: str | Path,
    format: str = "plain",  # noqa: A002
    *,
    example: Mapping[str, Any] | None = None,
    int8: bool = False,
) -> Path:
    """Write a pruned model so that it loads without headprune.

    `standalone`: the checkpoint carries a modelling file of its own; load it with `trust_remote_code=True`. Any heads
    that `prune_` can remove, in a class of transformers that its Auto classes know.
    `plain`: an ordinary checkpoint whose config has the smaller numbers. It needs the same number of heads in every
    layer (`select(..., per="site")`) and a family whose config can say how wide a head is (Llama, Mistral, Qwen, Gemma,
    T5 …); anything else is refused with the reason.
    `onnx`: `model.onnx` for onnxruntime and others, one forward pass without a cache, with free batch size and length,
    compared with the model by running it; `int8=True` writes `model.int8.onnx`, too (weights quantised).
    `example` is a batch to check it on, where none can be made.

    Example:
        >>> mask = hp.HeadMask.full(hp.find_heads(model)).without("encoder.0:1")
        >>> hp.export(hp.prune_(model, mask), "anywhere", format="standalone").name
        'anywhere'
    """
    write, target = formats[format], Path(folder)
    if int8:
        if format != "onnx":
            raise CheckpointError("int8 is for the format onnx. Quantise other checkpoints while they are loaded.")
        write = functools.partial(_write_onnx, int8=True)
    if target.exists() and not target.is_dir():
        raise CheckpointError(f"'{target}' is a file; expected a folder to write to.")
    write(model, target, example)
    return target


@formats.add("plain")
def plain(model: nn.Module, folder: Path, example: Mapping[str, Any] | None) -> None:
    made: Any = as_plain(model, example)
    entry = config_entry.read(model)

    def card(before: str) -> str:
        return before if entry is None else model_card(entry, before, loading="plain")

    save_beside(folder.resolve(), made.save_pretrained, card)


@formats.add("standalone")
def standalone(model: nn.Module, folder: Path, example: Mapping[str, Any] | None) -> None:
    entry = config_entry.read(model)
    save_beside(
        folder.resolve(),
        lambda place: save_standalone(model, place),
        lambda before: model_card(entry or {}, before, loading="standalone"),
    )


def _write_onnx(model: nn.Module, folder: Path, example: Mapping[str, Any] | None, *, int8: bool = False) -> None:
    from headprune.checkpoint.exports.onnx import save_onnx

    entry = config_entry.read(model)

    def card(before: str) -> str:
        return before if entry is None else model_card(entry, before, loading="onnx")

    save_beside(folder.resolve(), lambda place: save_onnx(model, place, example, int8=int8), card)


formats.add("onnx")(_write_onnx)
