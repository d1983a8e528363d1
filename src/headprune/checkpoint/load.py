"""Loading a pruned or gated model: what `from_pretrained` and every model's constructor do for it.

A pruned checkpoint is an ordinary one (safetensors and config.json) whose config has an entry `headprune`: which
heads are left, and the edits that shrink the skeleton before weights are loaded into it. A load whose config has no
such entry goes through untouched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from headprune import limits
from headprune.checkpoint import config_entry, gated, v4
from headprune.checkpoint.config_entry import GATES_ENTRY, V4_ENTRY, Entry, note_pruned_heads
from headprune.checkpoint.exchange import finish_interrupted
from headprune.errors import CheckpointError, HeadpruneError
from headprune.heads import Site
from headprune.hooks import JOINED_HEADS
from headprune.surgery.apply import apply_, freeze_stored_, untie_removed_
from headprune.surgery.edits import Edits

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ENTRIES = (config_entry.ENTRY, V4_ENTRY)
# Arguments of `from_pretrained` that say where a config is found.
WHERE = ("cache_dir", "local_files_only", "proxies", "revision", "subfolder", "token", "_commit_hash")


def restore_(model: nn.Module) -> None:
    """At the end of a model's constructor: the shapes and gates that its config tells of."""
    config = getattr(model, "config", None)
    if getattr(config, V4_ENTRY, None) and (old := v4.entry_for(model)) is not None:
        setattr(config, config_entry.ENTRY, old)  # as it said itself, and whoever has it says
    entry = config_entry.read(model)
    if entry is not None:
        most = max(limits.SMALL_MODEL, 4 * _size(model))  # `model` may be a part of what was pruned
        _check_amounts(entry, most)
        apply_(model, _checked_edits(entry, most), stored=True)
        untie_removed_(model)
        for site in config_entry.recorded_heads(entry):
            place = config_entry.find_module(model, site.path)
            if place is not None and site.num_heads != site.original_num_heads:
                config_entry.mark_pruned(place[1])
        note_pruned_heads(model.config, config_entry.recorded_heads(entry).attention)
    if getattr(config, GATES_ENTRY, None) is not None:
        gated.restore_(model)  # after it: gates go onto the skeleton as pruned


def from_pretrained(
    original: Callable[..., Any],
    cls: type[PreTrainedModel],
    /,
    pretrained_model_name_or_path: str | Path | None,
    *args: object,
    **kwargs: object,
) -> object:
    """The original call; of a pruned checkpoint, the weights must be those that the config promises."""
    name = pretrained_model_name_or_path
    finish_interrupted(name)  # a config that was given may be of another folder
    if not _tells_of_heads(cls, name, kwargs):
        return original(cls, name, *args, **kwargs)
    wants_info = kwargs.pop("output_loading_info", False)
    try:
        model, info = original(cls, name, *args, output_loading_info=True, **kwargs)
    except (HeadpruneError, ValueError, ImportError, TypeError, KeyError):
        raise  # ours, or an argument that would be wrong for any model
    except Exception as error:
        raise CheckpointError(
            f"The pruned checkpoint '{name}' cannot be loaded ({type(error).__name__}: {error}). Its weights do "
            "not have the shapes that its config gives: a file is damaged or incomplete, or the config was edited. "
            f"Save the pruned model again. (If {cls.__name__} is a part of it, load the whole and take the part.)"
        ) from error
    entry = config_entry.read(model)
    if entry is not None:
        _check_loaded(name, model, entry, info)
        freeze_stored_(model, entry)
    return (model, info) if wants_info else model


def _tells_of_heads(cls: type[PreTrainedModel], name: str | Path | None, kwargs: Mapping[str, object]) -> bool:
    """Whether the config of what is about to be loaded, or of a part of it, says that heads were removed."""
    config = kwargs.get("config")
    if hasattr(config, "to_diff_dict"):
        return any(getattr(part, entry, None) for part in config_entry.configs(config) for entry in ENTRIES)
    if kwargs.get("gguf_file") is not None:
        return False  # its config is made from what other runtimes know
    try:
        place = name if config is None else config
        stored, _ = cls.config_class.get_config_dict(place, **{key: kwargs[key] for key in WHERE if key in kwargs})
        return _has_entry(stored)
    except Exception:  # whatever is wrong with it, loading it says so
        return False


def _has_entry(stored: Entry) -> bool:
    return any(stored.get(entry) for entry in ENTRIES) or any(
        _has_entry(part) for part in stored.values() if isinstance(part, dict)
    )


def _size(model: nn.Module) -> int:
    """All dimensions of all weights: no site has more heads than its projections have channels."""
    return sum(sum(tensor.shape) for tensor in (*model.parameters(), *model.buffers()))


def _check_amounts(entry: Entry, most: int) -> None:
    """Before any loop over heads: the model is large enough to have so many."""
    try:
        sites = [site["original_num_heads"] for site in entry["heads"]["sites"]]
    except (KeyError, TypeError):
        return  # reading it tells what is wrong
    total = sum(number for number in sites if type(number) is int)
    if len(sites) + total <= most:
        return
    raise CheckpointError(
        f"The config's 'headprune' entry tells of {len(sites)} sites with {total} heads or neurons; a model of "
        f"this size has at most {most}. The entry was edited or damaged: save the pruned model again."
    )


def _checked_edits(entry: Entry, most: int) -> Edits:
    """The edits of a config, if they agree with the heads that it says are left."""
    edits = Edits.from_dict(entry.get("edits"), most=most)
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


def _check_loaded(name: str | Path | None, model: nn.Module, entry: Entry, info: object) -> None:
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


def _keys(info: object, kind: str) -> Iterable[str | tuple[str, ...]]:
    found = info.get(kind, ()) if isinstance(info, dict) else getattr(info, kind, ())
    return found or ()
