"""`export`: a pruned model for places where headprune is not installed."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from headprune.checkpoint import config_entry
from headprune.checkpoint.exports import exports
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
    `example` is a batch to check it on, where none can be made; `options` are those of a format of your own.

    Example:
        >>> mask = hp.HeadMask.full(hp.find_heads(model)).without("encoder.0:1")
        >>> hp.export(hp.prune_(model, mask), "anywhere", format="standalone").name
        'anywhere'
    """
    chosen, target = exports[format], Path(folder)
    asked = {**options, **({"int8": True} if int8 else {})}
    for name in asked:
        if name not in chosen.options:
            others = [other for other in exports if name in exports[other].options]
            raise CheckpointError(
                f"{name} is for the format {' or '.join(others)}; {format} does not take it."
                if others
                else f"No format has an option called '{name}'. {format} takes {', '.join(chosen.options) or 'none'}."
            )
    if target.exists() and not target.is_dir():
        raise CheckpointError(f"'{target}' is a file; expected a folder to write to.")
    entry = config_entry.read(model)

    def card(before: str) -> str:
        return before if entry is None else model_card(entry, before, loading=chosen.loading)

    save_beside(target.resolve(), lambda place: chosen.write(model, place, example, **asked), card)
    return target
