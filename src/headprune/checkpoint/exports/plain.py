"""A pruned model as an ordinary one: where every layer keeps the same number of heads, a config can say so.

Then nothing of ours is needed to load it, in transformers or in any runtime that reads the family. Whether a family's
config can say it is not looked up but tried: a new model is made from the edited config, and must take the weights
and answer alike.
"""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from headprune.checkpoint import config_entry
from headprune.checkpoint.config_entry import V4_ENTRY
from headprune.checkpoint.exports.registry import exports
from headprune.checkpoint.exports.standalone import MODULE
from headprune.errors import HeadpruneError, UnsupportedModelError
from headprune.heads import HeadMap, Site
from headprune.structure.dummy_inputs import example_inputs
from headprune.structure.find import find_heads
from headprune.structure.run import difference, eval_mode, run, unwrapped
from headprune.surgery.prune import refuse_unfit_models, refuse_unpruned_repair
from headprune.types import Batch, Config

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# What configs call these, in the order in which they are tried. An encoder-decoder may have names of its own.
HEADS = ("num_attention_heads", "num_heads", "n_head", "n_heads")
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv")
WIDTHS = ("head_dim", "d_kv")
NEURON_COUNTS = ("intermediate_size", "ffn_dim", "d_ff", "n_inner", "ffn_hidden_size", "hidden_dim")
OTHERWISE = "Otherwise save it with save_pretrained, and load it where headprune is installed."
SIDES = {"encoder": "encoder", "decoder": "decoder", "cross": "decoder"}


@exports.add("plain", loading="This is an ordinary checkpoint: nothing of headprune is needed to load it.")
def save_plain(model: nn.Module, folder: Path, example: Batch | None) -> None:
    """Save what `as_plain` makes into a folder that is there."""
    as_plain(model, example).save_pretrained(folder)


def as_plain(model: nn.Module, example: Batch | None = None) -> PreTrainedModel:
    """A model over the same tensors that looks as if it had never been pruned, to be saved. Refused otherwise."""
    model = unwrapped(model)
    refuse_unfit_models(model)
    refuse_unpruned_repair(model)
    if any(type(parameter) is not nn.Parameter for parameter in model.parameters()):
        raise UnsupportedModelError(
            "The model is quantised. Export it as it was before, and quantise it while it is loaded."
        )
    entry = config_entry.read(model)
    has_neurons = entry is not None and bool(config_entry.recorded_heads(entry).neurons)
    heads = find_heads(model, example, neurons=has_neurons)
    if getattr(model, "config", None) is None:
        raise UnsupportedModelError(f"{type(model).__name__} has no config that could say how many heads it has.")
    inputs = example if example is not None else example_inputs(model)
    with torch.no_grad(), eval_mode(model):
        expected = run(model, inputs)
    problems = []
    for width in ("as it is", "told", "added"):
        try:
            plain = _built(model, _config(model, heads, width), heads)
            with torch.no_grad():
                gap = difference(run(plain, inputs), expected)
        except HeadpruneError as error:
            problems.append(str(error))
            continue
        if gap.is_small:
            return plain
        problems.append(
            f"As a plain {type(model).__name__} the pruned model answers otherwise (by {gap.largest:.1e}): something "
            "besides its counts depends on which heads it has."
        )
    raise UnsupportedModelError(f"{problems[0]} {OTHERWISE}")


def _config(model: nn.Module, heads: HeadMap, width: str) -> Config:
    """The config with the smaller numbers; the width of a head left as it is, told, or added where there is none."""
    config: Config = copy.deepcopy(model.config)
    for place in _places(config).values():
        part = _part(config, place)
        for name in [name for name in vars(part) if name.startswith(config_entry.ENTRY) or name == V4_ENTRY]:
            delattr(part, name)
    if any(MODULE in str(place) for place in (getattr(config, "auto_map", None) or {}).values()):
        del config.auto_map  # it was loaded from a standalone folder, whose code it does without
    for owner, sites in _by_owner(model, heads.neurons).items() if heads.neurons else ():
        _tell_neurons(_part(config, owner), sites, type(model).__name__)
    for owner, sites in _by_owner(model, heads.attention).items():
        part = _part(config, owner)
        _tell(part, sites, type(model).__name__)
        if width != "as it is":
            names = [name for name in WIDTHS if hasattr(part, name)] or (list(WIDTHS[:1]) if width == "added" else [])
            for name in names[:1]:
                with contextlib.suppress(AttributeError):  # some compute it
                    setattr(part, name, sites[0].head_dim)
    return config


def _library_class(kind: type[PreTrainedModel]) -> type[PreTrainedModel]:
    """The class itself, or what the code of a standalone folder builds on."""
    if kind.__module__.rpartition(".")[2] != MODULE:
        return kind
    return next(base for base in kind.__mro__ if base.__module__.startswith("transformers."))


def _by_owner(model: nn.Module, heads: HeadMap) -> dict[tuple[str, ...], list[Site]]:
    """Sites by the part of the config that speaks of them: () is the config itself, ("text_config",) one inside it."""
    places = _places(model.config)
    found: dict[tuple[str, ...], list[Site]] = {}
    for site in heads:
        parts = site.path.split(".")
        owners = (model.get_submodule(".".join(parts[:n])) for n in range(len(parts) - 1, -1, -1))
        place = next((places[id(owner.config)] for owner in owners if id(getattr(owner, "config", None)) in places), ())
        found.setdefault(place, []).append(site)
    return found


def _places(config: Config, before: tuple[str, ...] = ()) -> dict[int, tuple[str, ...]]:
    """Where a config and those inside it are."""
    found = {id(config): before}
    for name, value in vars(config).items():
        if hasattr(value, "to_diff_dict"):
            found |= _places(value, (*before, name))
    return found


def _part(config: Config, place: Sequence[str]) -> Config:
    for name in place:
        config = getattr(config, name)
    return config


def _tell(config: Config, sites: Sequence[Site], model: str) -> None:
    """Write the counts into the config."""
    for side in dict.fromkeys(SIDES[site.component] for site in sites):
        mine = [site for site in sites if SIDES[site.component] == side]
        others = [site for site in sites if SIDES[site.component] != side]
        if any(isinstance(getattr(config, name, None), list | tuple) for name in HEADS):
            raise UnsupportedModelError(f"The config of {model} has a list of heads by stage, which is not supported.")
        own = [name for name in (f"{side}_{name}" for name in ("attention_heads", *HEADS)) if hasattr(config, name)]
        names = own or [name for name in HEADS if hasattr(config, name)]
        if not names:
            raise UnsupportedModelError(f"The config of {model} has no number of heads that could be changed.")
        _uniform(mine if own else [*mine, *others])
        first = mine[0]
        setattr(config, names[0], first.num_heads)
        for name in [name for name in KV_HEADS if hasattr(config, name)][:1]:
            setattr(config, name, first.num_kv_heads)


def _tell_neurons(config: Config, sites: Sequence[Site], model: str) -> None:
    """Write the width of feed-forward parts into the config; an encoder and a decoder may have one each."""
    by_name: dict[str, list[Site]] = {}
    for site in sites:
        side = (site.tower or "").rpartition(".")[2]
        names = (*(f"{side}_{name}" for name in NEURON_COUNTS), *NEURON_COUNTS)
        by_name.setdefault(next((name for name in names if hasattr(config, name)), ""), []).append(site)
    if "" in by_name:
        raise UnsupportedModelError(f"The config of {model} has no number of neurons that could be changed.")
    for name, mine in by_name.items():
        _uniform(mine)
        setattr(config, name, mine[0].num_heads)


def _uniform(sites: Sequence[Site]) -> None:
    first = sites[0]
    what = "neurons" if first.is_neurons else "heads"
    for site in sites:
        if not site.num_heads:
            raise UnsupportedModelError(f"{site.id} has no {what} left, which an ordinary config cannot say.")
        if (site.num_heads, site.num_kv_heads) != (first.num_heads, first.num_kv_heads):
            raise UnsupportedModelError(
                f"{first.id} has {first.num_heads} {what} and {site.id} has {site.num_heads}: an ordinary config has "
                'one number for all. Prune as many everywhere (select(..., per="site"), or headprune prune --uniform).'
            )


def _built(model: nn.Module, config: Config, heads: HeadMap) -> PreTrainedModel:
    """A model of the edited config with these weights."""
    name = type(model).__name__
    try:
        loaded = type(config).from_dict(json.loads(config.to_json_string()))  # as whoever loads it will have it
        plain = _library_class(type(model))(loaded)
    except Exception as error:  # whatever a family's own checks say
        message = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        raise UnsupportedModelError(f"The config of {name} cannot say it ({message}).") from error
    weights, places = model.state_dict(), plain.state_dict()
    for key in [*places, *weights]:
        if key in weights and key in places and weights[key].shape != places[key].shape:
            weights[key] = _cut_table(key, weights[key], places[key], heads)
        found, wanted = (tuple(table[key].shape) if key in table else None for table in (weights, places))
        if found != wanted:
            raise UnsupportedModelError(
                f"{name} with this number of heads has {key} of shape {wanted or 'nothing'}; the pruned one has "
                f"{found or 'nothing'}. Its config cannot say that heads are fewer and as wide as before: many "
                "families take the width of a head from hidden size / heads. For places without headprune, "
                "format='standalone' (--format standalone) takes any pruned model."
            )
    plain.to(next(model.parameters()).device)
    plain.load_state_dict(weights, assign=True)  # the same tensors, each in its own precision
    plain.tie_weights()
    if getattr(model, "generation_config", None) is not None:
        plain.generation_config = copy.deepcopy(model.generation_config)
    return plain.eval()


def _cut_table(key: str, table: torch.Tensor, wanted: torch.Tensor, heads: HeadMap) -> torch.Tensor:
    """A table with an entry for every original head, which layers share (T5's positions): if all layers keep the same
    heads, theirs are left of it."""
    heads = heads.attention
    kept = {site.kept for site in heads}
    different = [
        dim for dim in range(table.dim()) if table.dim() == wanted.dim() and table.shape[dim] != wanted.shape[dim]
    ]
    every = {site.original_num_heads for site in heads}
    if len(different) != 1 or every != {table.shape[different[0]]}:
        return table
    if len(kept) != 1:
        first = heads.sites[0]
        other = next(site for site in heads if site.kept != first.kept)
        raise UnsupportedModelError(
            f"Layers share {key}, which has an entry for every head, and {first.id} keeps the heads "
            f"{list(first.kept)} where {other.id} keeps {list(other.kept)}: in an ordinary checkpoint every layer must "
            "keep the same heads."
        )
    index = torch.tensor(next(iter(kept)), device=table.device)
    return table.index_select(different[0], index)
