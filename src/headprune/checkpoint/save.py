"""Saving a pruned or gated model through the ordinary `save_pretrained`: all of it, or nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from torch import nn

from headprune.checkpoint import config_entry, gated
from headprune.checkpoint.config_entry import GATES_ENTRY, Entry, recorded_heads
from headprune.checkpoint.exchange import exchange, finish_interrupted
from headprune.checkpoint.load_model import auto_classes
from headprune.errors import CheckpointError, FileFormatError, HeadpruneError
from headprune.files import markdown_text
from headprune.heads.headmap import NEURONS, SiteName, head_lists
from headprune.hooks import is_gated
from headprune.masking import is_masked

ONNX, ONNX_INT8 = "model.onnx", "model.int8.onnx"


def save_pretrained(
    original: Callable[..., object], model: nn.Module, /, save_directory: str | Path, *args: object, **kwargs: object
) -> object:
    """The original call, whose files are written beside the target and moved into place at the end; a model that could
    not be loaded again is refused. A model that we did not touch is saved as ever."""
    if is_gated(model) or getattr(model.config, GATES_ENTRY, None) is not None:
        gated.note_gates(model)
    if is_masked(model):
        raise CheckpointError(
            "save_pretrained was called inside a `masked` block: masks are not part of a checkpoint. "
            "Leave the block to save the whole model, or prune_ the heads first."
        )
    if config_entry.repaired_parts(model):
        raise CheckpointError(
            "The model was repaired (recover_) for heads that are still there: saved so, it would be neither the "
            "original nor the pruned model. prune_ it with the mask that it was repaired for first."
        )
    entry = config_entry.read(model)
    if entry is not None and getattr(model.config, config_entry.ENTRY, None) is None:
        config_entry.write(model, entry)  # the base model was pruned by itself
    lost = config_entry.unrecorded_blocks(model)
    if lost:
        raise CheckpointError(
            f"Heads of {lost[0]} were removed while this model was part of another, and its config does not say "
            "so: the checkpoint could not be loaded. Prune the model that you save, or save the whole."
        )
    main_process = args[0] if args else kwargs.get("is_main_process", True)
    if main_process:
        finish_interrupted(save_directory)  # or a later load would finish it, over this model
    if entry is None or not main_process:
        return original(model, save_directory, *args, **kwargs)
    target = Path(save_directory).resolve()
    try:
        if target.is_file():
            raise NotADirectoryError(f"'{target}' is a file")
        if kwargs.get("push_to_hub"):
            return original(model, save_directory, *args, **kwargs)
        save_beside(
            target,
            lambda folder: original(model, folder, *args, **kwargs),
            lambda before: model_card(entry, before, _loading(model)),
        )
    except HeadpruneError:
        raise
    except Exception as error:
        raise CheckpointError(
            f"The pruned model could not be saved to '{target}' ({type(error).__name__}: {error}). What was there "
            "before is untouched. Check permissions and free space, and save again."
        ) from error
    return None


def save_beside(target: Path, save: Callable[[Path], object], card: Callable[[str], str]) -> None:
    """Save into a new folder on the same disk, and exchange what is in the target for it. A failure leaves the target
    as it was. `card` makes the model card from the one that is there."""
    with exchange(target, lambda names: stale(names, target)) as new:
        save(new)
        old_card = target / "README.md"
        before = old_card.read_text(encoding="utf-8", errors="replace") if old_card.is_file() else ""
        (new / "README.md").write_text(card(before), encoding="utf-8")


def stale(names: list[str], target: Path) -> list[str]:
    """Weight files of an earlier save of the same variant, which a loader would take instead of the new ones; and the
    ONNX file in 8 bits of another model."""
    if ONNX in names:
        return [ONNX_INT8] if ONNX_INT8 not in names and (target / ONNX_INT8).exists() else []
    weights = next((name for name in names if name.endswith(".safetensors")), "")
    stem = re.sub(r"(-\d{5}-of-\d{5})?\.safetensors$", "", weights)  # model, or model.fp16
    pattern = re.compile(re.escape(stem) + r"(-\d{5}-of-\d{5})?\.safetensors")
    index = f"model.safetensors.index{stem.removeprefix('model')}.json"
    return [
        path.name
        for path in target.iterdir()
        if stem and path.name not in names and (pattern.fullmatch(path.name) or path.name == index)
    ]


BEGIN, END = "<!-- headprune: begin -->", "<!-- headprune: end -->"


def _loading(model: nn.Module) -> str:
    """The call that loads a model in the class that it was saved from."""
    made = sorted(auto_classes(type(model)), key=lambda auto: auto == "AutoModelForPreTraining")  # a last resort
    name = (made or [type(model).__name__])[0]
    return f"""Load it with the ordinary call, after importing headprune (without it, loading stops with an error):

```python
import headprune
from transformers import {name}

model = {name}.from_pretrained("path/to/this/folder")
```"""


def model_card(entry: Entry, before: str, loading: str) -> str:
    """The card `before` with our section put in, or replaced if it is there already; `loading` is what it takes."""
    section = f"{BEGIN}\n{_section(entry, loading)}\n{END}"
    if BEGIN in before and END in before:
        return re.sub(f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: section, before, count=1, flags=re.DOTALL)
    if before.strip():
        return f"{before.rstrip()}\n\n{section}\n"
    return f"---\nlibrary_name: transformers\ntags:\n- headprune\n---\n\n# Pruned model\n\n{section}\n"


def _section(entry: Entry, loading: str) -> str:
    every = recorded_heads(entry)
    heads, neurons = every.attention, every.neurons
    original = sum(site.original_num_heads for site in heads)
    lines = [
        "## Removed attention heads",
        "",
        f"{original - len(heads)} of {original} attention heads were removed. Heads count from 0, by their "
        "index in the original model.",
        "",
        "| site | heads left | of | removed |",
        "|---|---|---|---|",
    ]
    for site in heads:
        gone = sorted(set(range(site.original_num_heads)) - set(site.kept))
        shown = ", ".join(map(str, gone)) if gone else "none"
        lines.append(f"| {markdown_text(site.id)} | {site.num_heads} | {site.original_num_heads} | {shown} |")
    if neurons:
        lines += [
            "",
            "Neurons of feed-forward parts that are left:",
            "",
            "| site | neurons left | of |",
            "|---|---|---|",
        ]
        lines += [f"| {markdown_text(site.id)} | {site.num_heads} | {site.original_num_heads} |" for site in neurons]
    lines += ["", "How they were chosen:", ""]
    history = entry.get("history", [])
    if not isinstance(history, list) or not all(isinstance(step, dict) for step in history):
        raise FileFormatError(f"The config's history is {str(history)[:60]}; expected a list of tables, one a pruning.")
    for number, step in enumerate(history, 1):
        removed = _removed(head_lists(step.get("removed", {}), "The config's history, 'removed'"))
        how = markdown_text(step.get("by") or "") or "a mask given by the user"
        on = f", on {markdown_text(step['on'])}" if step.get("on") else ""
        repaired = f"; repaired without training by {markdown_text(step['recovered'])}" if step.get("recovered") else ""
        lines.append(f"{number}. {removed} by {how}{on}{repaired}")
    lines += ["", loading]
    return "\n".join(lines)


def _removed(gone: dict[str, list[int]]) -> str:
    neurons = sum(len(indices) for site, indices in gone.items() if SiteName.parse(site).component == NEURONS)
    heads = sum(len(indices) for indices in gone.values()) - neurons
    return " and ".join(f"{count} {what}" for count, what in ((heads, "heads"), (neurons, "neurons")) if count)
