"""What a model's config says about its heads (the entry `headprune`) and its gates (`headprune_gates`)."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from torch import nn

from headprune.errors import CheckpointError, HeadpruneError, MaskError, UnsupportedModelError
from headprune.files import bounded_text, loads
from headprune.heads import HeadMap, HeadMask, Site
from headprune.types import Config

Entry: TypeAlias = dict[str, Any]  # as JSON has it

ENTRY = "headprune"
VERSION = 1
GATES_ENTRY = "headprune_gates"  # in the config, and the name of the submodule
GATES_VERSION = 1


def read(model_or_config: object) -> Entry | None:
    """The entry of a model's config, checked for its version; None for a model that was never pruned."""
    config = getattr(model_or_config, "config", None) if isinstance(model_or_config, nn.Module) else model_or_config
    entry = getattr(config, ENTRY, None)
    if entry is None and isinstance(model_or_config, nn.Module):
        entry = vars(model_or_config).get("_headprune_record")  # a plain module without a config
        if entry is None and base_prefix(model_or_config):  # the base model was pruned by itself: same stored paths
            base = getattr(model_or_config, base_prefix(model_or_config)[:-1])
            entry = getattr(getattr(base, "config", None), ENTRY, None)
    if entry is None:
        return None
    if not isinstance(entry, dict) or entry.get("version") != VERSION:
        found = entry.get("version") if isinstance(entry, dict) else type(entry).__name__
        raise CheckpointError(
            f"The config's '{ENTRY}' entry has version {found!r}; this headprune reads version {VERSION}. "
            "Update headprune, or prune the original model again."
        )
    return entry


def pruned_parts(model: nn.Module) -> list[tuple[str, nn.Module, Entry]]:
    """The model with its entry; or, where it has none, the outermost modules in it that were pruned by themselves, with
    what comes before their paths."""
    found: list[tuple[str, nn.Module, Entry]] = []
    for path, part in model.named_modules():
        if path and not (vars(part).get("_headprune_record") or hasattr(part, "post_init")):
            continue
        if any(path.startswith(prefix) for prefix, _, _ in found):
            continue
        if (entry := read(part)) is not None and _is_of(part, entry):
            found.append((f"{path}." if path else "", part, entry))
    return found


def _is_of(part: nn.Module, entry: Entry) -> bool:
    """Whether an entry speaks of this module, and not of one inside that shares its config with a wrapper."""
    if hasattr(part, "post_init") or vars(part).get("_headprune_record"):
        return True
    return any(find_module(part, site.path) is not None for site in recorded_heads(entry))


def stored_entry(folder: Path, name: str) -> Entry | None:
    """An entry of the config in a folder; a file that cannot be understood is an OSError or a ValueError."""
    entry: object = loads(bounded_text(folder / "config.json")).get(name)
    if not isinstance(entry, dict | None):
        raise ValueError(f"'{name}' is {type(entry).__name__}")
    return entry


def recorded_heads(entry: Entry) -> HeadMap:
    try:
        return HeadMap.from_dict(entry["heads"])
    except (HeadpruneError, KeyError, TypeError) as error:
        raise CheckpointError(f"The config's '{ENTRY}' entry does not describe heads: {error}") from error


def base_prefix(model: nn.Module) -> str:
    """What to put before a recorded path: paths are stored as the base model sees them (`bert.` is left out)."""
    prefix = getattr(model, "base_model_prefix", "")
    return f"{prefix}." if prefix and isinstance(getattr(model, prefix, None), nn.Module) else ""


def stored_path(model: nn.Module, path: str) -> str:
    return path.removeprefix(base_prefix(model))


def site_entry(model: nn.Module, site: Site) -> Entry:
    """A site for the config, with paths as the base model sees them."""
    entry = HeadMap((site,)).to_dict()["sites"][0]
    return {**entry, "path": stored_path(model, site.path), "output": stored_path(model, site.output)}


def find_module(model: nn.Module, stored: str) -> tuple[str, nn.Module] | None:
    """The module of a recorded path in this model, which may be the base class or a class with another head."""
    for path in (base_prefix(model) + stored, stored):
        try:
            return path, model.get_submodule(path)
        except AttributeError:
            continue
    return None


def write(model: nn.Module, entry: Entry, name: str = ENTRY) -> None:
    """Put an entry into the config that `save_pretrained` writes; a plain module keeps it itself."""
    if getattr(model, "config", None) is None:
        vars(model)["_headprune_record"] = entry
        return
    _own_config(model)
    setattr(model.config, name, entry)


def _own_config(model: nn.Module) -> None:
    """Give the model a config of its own: two models built from one config object must not share the entry."""
    copies: dict[int, Any] = {}
    copy.deepcopy(model.config, copies)
    for module in model.modules():
        config = vars(module).get("config")
        if id(config) in copies:
            module.config = copies[id(config)]
        base = getattr(config, "headprune_base", None)  # the view of a pruned block
        if base is not None and id(base) in copies:
            config.__dict__["headprune_base"] = copies[id(base)]


def mark_pruned(block: nn.Module) -> None:
    """Remember on the block itself that heads are missing, in case it is saved as part of another model."""
    vars(block)["_headprune_pruned"] = True


def is_marked(block: nn.Module) -> bool:
    """Whether heads are missing from it, as far as it is remembered there."""
    return bool(vars(block).get("_headprune_pruned"))


def unrecorded_blocks(model: nn.Module) -> list[str]:
    """Pruned blocks that no config entry would tell of if this model were saved now."""
    pruned = {path for path, module in model.named_modules() if is_marked(module)}
    if not pruned:
        return []
    saved = {id(config) for config in configs(getattr(model, "config", None))}
    for prefix, part in model.named_modules():
        entry = getattr(vars(part).get("config"), ENTRY, None) if id(vars(part).get("config")) in saved else None
        if entry is None or not hasattr(part, "post_init"):
            continue
        for site in recorded_heads(entry):
            place = find_module(part, site.path)
            if place is not None:
                pruned.discard(f"{prefix}.{place[0]}" if prefix else place[0])
    return sorted(pruned)


def configs(config: Config | None) -> list[Config]:
    """A config and the configs of its parts."""
    parts = [value for value in vars(config).values() if hasattr(value, "to_diff_dict")] if config is not None else []
    return [config, *(inner for part in parts for inner in configs(part))]


_REPAIR = "_headprune_repair"


def kept_where_heads_go(mask: HeadMask, heads: HeadMap) -> dict[str, list[int]]:
    """What stays, of the sites that lose heads: by this a repair and the pruning that follows it know each other."""
    return {site.id: list(mask.kept(site.id)) for site in heads if mask.kept(site.id) != site.kept}


def note_repair(model: nn.Module, how: Entry) -> None:
    """Remember that the output projections were fitted to a mask."""
    vars(model)[_REPAIR] = how


def noted_repair(model: nn.Module) -> Entry | None:
    found: Entry | None = vars(model).get(_REPAIR)
    return found


def repaired_parts(model: nn.Module) -> list[str]:
    """Modules inside a model that were repaired by themselves and not pruned since; "" is the model."""
    return [path for path, module in model.named_modules() if noted_repair(module) is not None]


def forget_repair(model: nn.Module) -> None:
    vars(model).pop(_REPAIR, None)


V4_ENTRY = "pruned_heads"


def has_plain_layers(heads: HeadMap) -> bool:
    """Whether a layer number alone says which site is meant."""
    layers = [layer for site in heads for layer in site.layers]
    return len(heads.components) == 1 and len({site.tower for site in heads}) == 1 and len(set(layers)) == len(layers)


def sites_by_layer(heads: HeadMap) -> dict[int, Site]:
    """The site that a bare layer number means; refused where it could mean several."""
    if not heads:
        why = f" ({heads.skipped[0].path}: {heads.skipped[0].reason})" if heads.skipped else ""
        raise MaskError(f"No heads were found in this model{why}.")
    if not has_plain_layers(heads):
        raise MaskError(
            f"This model has {', '.join(site.id for site in heads.sites[:6])} …: a layer number alone is ambiguous. "
            "Name sites instead: {'encoder.3': [0, 2]}."
        )
    return {layer: site for site in heads for layer in site.layers}


def note_pruned_heads(config: Config, heads: HeadMap) -> None:
    """Keep v4's entry of a config true, where there is one and it can be told."""
    if getattr(config, V4_ENTRY, None) is not None and has_plain_layers(heads):
        gone = {
            layer: sorted(set(range(site.original_num_heads)) - set(site.kept))
            for layer, site in sites_by_layer(heads).items()
            if site.num_heads < site.original_num_heads
        }
        setattr(config, V4_ENTRY, gone)


def remembered_sites(model: nn.Module, found: Mapping[str, Site], *, neurons: bool) -> dict[str, Site]:
    """Sites as an earlier pruning recorded them, under this model's paths; emptied ones included."""
    sites: dict[str, Site] = {}
    for prefix, part, entry in pruned_parts(model):
        recorded = {}
        for site in recorded_heads(entry):
            place = find_module(part, site.path)
            if place is None or (site.is_neurons and not neurons):
                continue  # a part that this class of the model does not have
            path = f"{prefix}{place[0]}"
            here = found.get(path)
            if site.num_heads and here is None:
                continue  # this class has the block but does not run it
            if site.num_heads and here is not None and here.num_heads != site.num_heads:
                raise UnsupportedModelError(
                    f"The config says that {site.id} has {site.num_heads} heads left; {here.num_heads} were found at "
                    f"{path}. The model was changed after it was pruned, or its config was edited."
                )
            output = path.removesuffix(site.path) + site.output
            recorded[path] = dataclasses.replace(site, path=path, output=output)
        sites |= _named_as_whole(model, prefix, recorded, found) if prefix else recorded
    return sites


def check_recorded(model: nn.Module, sites: Mapping[str, Site]) -> None:
    """A block that lost heads as a part of another model has no numbers for those that are left."""
    for path, site in sites.items():
        if is_marked(model.get_submodule(path)) and site.num_heads == site.original_num_heads:
            raise UnsupportedModelError(
                f"{path} lost heads as a part of another model, and no config in {type(model).__name__} tells which: "
                "their numbers are not known. Find, mask and prune heads of the model that was pruned."
            )


def _named_as_whole(
    model: nn.Module, prefix: str, recorded: Mapping[str, Site], found: Mapping[str, Site]
) -> dict[str, Site]:
    """Sites of a pruned model inside another: the numbers of their heads are its own, their names the whole's."""
    if all(found[path].id == site.id for path, site in recorded.items() if path in found) and not found.keys() - {
        *recorded
    }:
        return dict(recorded)
    if emptied := [site.id for site in recorded.values() if not site.num_heads]:
        raise UnsupportedModelError(
            f"{prefix.removesuffix('.')} in {type(model).__name__} was pruned by itself and has sites without heads "
            f"({', '.join(emptied[:3])}), whose names in the whole are not known. Work on that part: "
            f"model.get_submodule('{prefix.removesuffix('.')}')."
        )
    names = ("id", "component", "layer", "layers", "tower")
    return {
        path: dataclasses.replace(site, **{name: getattr(found[path], name) for name in names})
        for path, site in recorded.items()
    }


def emptied_paths(model: nn.Module) -> list[str]:
    """Blocks that an earlier pruning took all heads from."""
    return [
        f"{prefix}{place[0]}"
        for prefix, part, entry in pruned_parts(model)
        for site in recorded_heads(entry)
        if not site.num_heads and (place := find_module(part, site.path)) is not None
    ]
