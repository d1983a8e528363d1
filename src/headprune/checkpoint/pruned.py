"""Pruned models through the ordinary `save_pretrained` and `from_pretrained`. The only file that knows the layout.

A pruned checkpoint is an ordinary one (safetensors and config.json) whose config has an entry `headprune`: which
heads are left, and the edits that shrink the skeleton before weights are loaded into it. `install` wraps three methods
of `PreTrainedModel`; each does nothing for models without the entry:

* `post_init`, which every model calls at the end of its constructor, applies the edits to the empty skeleton (and
  makes an entry from v4's `pruned_heads`);
* `save_pretrained` writes everything beside the target first and moves it into place at the end;
* `from_pretrained` checks that the weights are those that the config promises.
"""

from __future__ import annotations

import functools
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from torch import nn

from headprune.checkpoint import config_entry, v4
from headprune.checkpoint.card import model_card
from headprune.checkpoint.v4_config import V4_ENTRY, note_pruned_heads
from headprune.errors import CheckpointError, HeadpruneError
from headprune.heads import Site
from headprune.hooks import JOINED_HEADS, register_attention_function
from headprune.masking import is_masked
from headprune.surgery.apply import apply_, untie_removed_
from headprune.surgery.edits import MOST, Edits

ONNX, ONNX_INT8 = "model.onnx", "model.int8.onnx"
_MARK = "_headprune_installed"


def install(modeling_utils: Any) -> None:
    """Wrap the methods of `transformers.modeling_utils.PreTrainedModel`, once."""
    cls = modeling_utils.PreTrainedModel
    if _MARK in vars(cls):
        return
    register_attention_function()
    cls.post_init = _with_edits(cls.post_init)
    cls.save_pretrained = _with_safe_saving(cls.save_pretrained)
    cls.from_pretrained = classmethod(_with_checked_weights(vars(cls)["from_pretrained"].__func__))
    setattr(cls, _MARK, True)


def _with_edits(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def post_init(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        old = v4.entry_for(self)
        if old is not None:
            setattr(self.config, config_entry.ENTRY, old)  # as it said itself, and whoever has it says
        entry = config_entry.read(self)
        if entry is not None:
            apply_(self, _checked_edits(entry, self), stored=True)
            untie_removed_(self)
            for site in config_entry.recorded_heads(entry):
                place = config_entry.find_module(self, site.path)
                if place is not None and site.num_heads != site.original_num_heads:
                    config_entry.mark_pruned(place[1])
            note_pruned_heads(self.config, config_entry.recorded_heads(entry).attention)
        return result

    return post_init


def _checked_edits(entry: dict[str, Any], model: nn.Module) -> Edits:
    """The edits of a config, if they agree with the heads that it says are left."""
    sizes = sum(sum(tensor.shape) for tensor in (*model.parameters(), *model.buffers()))
    edits = Edits.from_dict(entry.get("edits"), most=max(MOST, 4 * sizes))  # `model` may be a part of what was pruned
    for site in config_entry.recorded_heads(entry):
        if not _output_agrees(edits, site) or not _other_edits_agree(edits, site):
            raise CheckpointError(
                f"The config says that {site.id} keeps heads {list(site.kept)}, but cuts its weights otherwise. The "
                "'headprune' entry was edited by hand: save the pruned model again."
            )
    return edits


def _output_agrees(edits: Edits, site: Site) -> bool:
    """Whether the output projection is left as many columns as the site has heads, and those."""
    parent, _, name = site.output.rpartition(".")
    is_bare = name == JOINED_HEADS
    cut = edits.slices.get(parent, {}).get("o") if is_bare else edits.slices.get(site.output, {}).get("weight")
    is_emptied = site.output in edits.stubs
    if site.num_heads == 0:
        return is_emptied
    if site.num_heads == site.original_num_heads:
        return cut is None and not is_emptied
    width = 1 if is_bare else site.head_dim
    columns = [head * width + i for head in site.kept for i in range(width)]
    return cut is not None and not is_emptied and list(cut.keep) == columns


def _other_edits_agree(edits: Edits, site: Site) -> bool:
    """Biases made for all heads are cut to the site's own heads; an emptied site keeps one as a placeholder."""
    cuts = [
        a.bias_heads for path, a in edits.attention.items() if _inside(path, site.path) and a.bias_heads is not None
    ]
    for path, arguments in edits.arguments.items():
        if _inside(path, site.path):
            cuts += [argument.kept for argument in arguments]
            if any(argument.heads != site.original_num_heads for argument in arguments):
                return False
    if site.num_heads:
        return all(cut == site.kept for cut in cuts)
    return all(len(cut) == 1 and cut[0] < site.original_num_heads for cut in cuts)


def _inside(path: str, block: str) -> bool:
    return f"{path}.".startswith(f"{block}.")


def _with_safe_saving(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def save_pretrained(self: Any, save_directory: Any, *args: Any, **kwargs: Any) -> Any:
        if is_masked(self):
            raise CheckpointError(
                "save_pretrained was called inside a `masked` block: masks are not part of a checkpoint. "
                "Leave the block to save the whole model, or prune_ the heads first."
            )
        if config_entry.repaired_parts(self):
            raise CheckpointError(
                "The model was repaired (recover_) for heads that are still there: saved so, it would be neither the "
                "original nor the pruned model. prune_ it with the mask that it was repaired for first."
            )
        entry = config_entry.read(self)
        if entry is not None and getattr(self.config, config_entry.ENTRY, None) is None:
            config_entry.write(self, entry)  # the base model was pruned by itself
        lost = config_entry.unrecorded_blocks(self)
        if lost:
            raise CheckpointError(
                f"Heads of {lost[0]} were removed while this model was part of another, and its config does not say "
                "so: the checkpoint could not be loaded. Prune the model that you save, or save the whole."
            )
        main_process = args[0] if args else kwargs.get("is_main_process", True)
        if entry is None or not main_process:
            return original(self, save_directory, *args, **kwargs)
        target = Path(save_directory).resolve()
        try:
            if target.is_file():
                raise NotADirectoryError(f"'{target}' is a file")
            if kwargs.get("push_to_hub"):
                return original(self, save_directory, *args, **kwargs)
            save_beside(
                target, lambda folder: original(self, folder, *args, **kwargs), lambda before: model_card(entry, before)
            )
        except HeadpruneError:
            raise
        except Exception as error:
            raise CheckpointError(
                f"The pruned model could not be saved to '{target}' ({type(error).__name__}: {error}). What was there "
                "before is untouched. Check permissions and free space, and save again."
            ) from error
        return None

    return save_pretrained


def save_beside(target: Path, save: Callable[[Path], object], card: Callable[[str], str]) -> None:
    """Save into a new folder on the same disk, then move the files in. A failure leaves the target as it was.
    `card` makes the model card from the one that is there."""
    near = target
    while not near.exists():
        near = near.parent
    folder = Path(tempfile.mkdtemp(dir=near, prefix=".headprune-"))
    try:
        new, old = folder / "new", folder / "old"
        new.mkdir()
        old.mkdir()
        save(new)
        old_card = target / "README.md"
        before = old_card.read_text(encoding="utf-8", errors="replace") if old_card.is_file() else ""
        (new / "README.md").write_text(card(before), encoding="utf-8")
        target.mkdir(parents=True, exist_ok=True)
        _exchange(new, old, target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _exchange(new: Path, old: Path, target: Path) -> None:
    """Move new files in and what they replace out; put everything back if a move fails."""
    names = sorted(path.name for path in new.iterdir())
    leaving = [name for name in names if (target / name).exists()] + _stale(names, target)
    gone: list[str] = []
    came: list[str] = []
    try:
        for name in leaving:
            (target / name).replace(old / name)
            gone.append(name)
        for name in names:
            (new / name).replace(target / name)
            came.append(name)
    except BaseException:
        for name in came:
            (target / name).replace(new / name)
        for name in gone:
            (old / name).replace(target / name)
        raise


def _stale(names: list[str], target: Path) -> list[str]:
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


def _with_checked_weights(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def from_pretrained(cls: Any, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        name = pretrained_model_name_or_path
        wants_info = kwargs.pop("output_loading_info", False)
        try:
            model, info = original(cls, name, *args, output_loading_info=True, **kwargs)
        except HeadpruneError:
            raise
        except Exception as error:
            if isinstance(error, ValueError | ImportError | TypeError | KeyError):
                raise  # an argument that would be wrong for any model
            if not _is_pruned_checkpoint(name, kwargs.get("config")):
                raise
            raise CheckpointError(
                f"The pruned checkpoint '{name}' cannot be loaded ({type(error).__name__}: {error}). Its weights do "
                "not have the shapes that its config gives: a file is damaged or incomplete, or the config was edited. "
                f"Save the pruned model again. (If {cls.__name__} is a part of it, load the whole and take the part.)"
            ) from error
        entry = config_entry.read(model)
        if entry is not None:
            _check_loaded(name, model, entry, info)
        return (model, info) if wants_info else model

    return from_pretrained


def _check_loaded(name: Any, model: nn.Module, entry: dict[str, Any], info: Any) -> None:
    """No weight of a pruned block may be missing, left over or of another shape."""
    places = (config_entry.find_module(model, path) for path in Edits.from_dict(entry.get("edits")).paths())
    pruned = tuple(f"{place[0]}." for place in places if place is not None)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        keys = [key if isinstance(key, str) else key[0] for key in _keys(info, kind)]
        touched = sorted(key for key in keys if key.startswith(pruned))
        if touched:
            raise CheckpointError(
                f"The pruned checkpoint '{name}' does not hold what its config says: {kind.replace('_', ' ')} "
                f"{', '.join(touched[:4])}. A file is incomplete or the config was edited. Save the pruned model again."
            )


def _keys(info: Any, kind: str) -> Iterable[Any]:
    found = info.get(kind, ()) if isinstance(info, dict) else getattr(info, kind, ())
    return found or ()


def _is_pruned_checkpoint(name: Any, config: Any) -> bool:
    if config is not None:
        return any(getattr(config, entry, None) for entry in (config_entry.ENTRY, V4_ENTRY))
    path = Path(str(name)) / "config.json"
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        return any(stored.get(entry) for entry in (config_entry.ENTRY, V4_ENTRY))
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return False
