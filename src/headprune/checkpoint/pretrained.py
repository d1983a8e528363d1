"""What `save_pretrained`, `from_pretrained` and every model's constructor do for a pruned or gated model.

A pruned checkpoint is an ordinary one (safetensors and config.json) whose config has an entry `headprune`: which
heads are left, and the edits that shrink the skeleton before weights are loaded into it. It is saved as a whole or not
at all. A model whose config has no such entry is saved and loaded as ever.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from headprune import limits
from headprune.checkpoint import config_entry, gated, v4
from headprune.checkpoint.config_entry import GATES_ENTRY, V4_ENTRY, Entry, note_pruned_heads, recorded_heads
from headprune.checkpoint.exchange import check_unchanged, exchange, finish_interrupted, model_files
from headprune.errors import CheckpointError, FileFormatError, HeadpruneError
from headprune.files import check_inside, markdown_text, open_regular
from headprune.heads import Site
from headprune.heads.headmap import NEURONS, SiteName, head_lists
from headprune.hooks import JOINED_HEADS, is_gated
from headprune.masking import is_masked
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
            _check_whole(model, site, has_block=place is not None)
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
    before, given = model_files(name), _read_earlier(name, kwargs.get("config"))
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
    check_unchanged(name, before, given)
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


def _read_earlier(name: str | Path | None, config: object) -> Entry | None:
    """The entry of a config that was read from the same folder before, as the Auto classes do."""
    entry: Entry | None = getattr(config, config_entry.ENTRY, None)
    return entry if str(getattr(config, "_name_or_path", "")) == str(name) else None


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


def _check_whole(model: nn.Module, site: Site, *, has_block: bool) -> None:
    """This class has the block and its output projection, or neither: else the heads that are left had no numbers."""
    path, _, last = site.output.rpartition(".")
    projection = path if last == JOINED_HEADS else site.output
    if has_block != (config_entry.find_module(model, projection) is not None):
        raise CheckpointError(
            f"The config says that {site.id} is {site.path[:80]!r} with the projection {projection[:80]!r}; this model "
            "has one of them. The 'headprune' entry was edited by hand: save the pruned model again."
        )


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
            lambda before: model_card(entry, before, loading_words(model)),
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
        before = _old_card(target)
        save(new)
        (new / "README.md").write_text(card(before), encoding="utf-8")


def _old_card(folder: Path) -> str:
    """The model card that is there, if it is a file of this folder: what a link leads to was not meant to be copied."""
    path = folder / "README.md"
    if not path.is_symlink() and not path.exists():
        return ""
    try:
        check_inside(path, folder)
        with open_regular(path, limits.TEXT_BYTES) as file:
            return file.read(limits.TEXT_BYTES).decode("utf-8", errors="replace")
    except OSError as error:
        raise CheckpointError(f"The card in the folder cannot be taken along: {error}. Remove it.") from error


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


def loading_words(model: nn.Module) -> str:
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


def auto_classes(kind: type) -> list[str]:
    """The Auto classes that make a class; none if it only has the name of one of the library's."""
    import transformers
    from transformers.models.auto import modeling_auto

    name = kind.__name__
    if getattr(transformers, name, None) is not kind:
        return []
    found = []
    for auto, cls in vars(modeling_auto).items():
        if auto.startswith("AutoModel"):
            names = getattr(cls._model_mapping, "_model_mapping", {})  # of configs -> of classes, nothing is imported
            made = [one for value in dict(names).values() for one in ([value] if isinstance(value, str) else value)]
            found += [auto] if name in made else []
    return found
