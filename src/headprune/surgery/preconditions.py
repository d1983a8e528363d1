"""What must hold of a model before heads are removed from it, or it is repaired or exported."""

from __future__ import annotations

from typing import Any

from torch import nn

from headprune.checkpoint import config_entry
from headprune.errors import MaskError, UnsupportedModelError
from headprune.heads import HeadMask
from headprune.hooks import is_gated
from headprune.masking import EmptySite, is_masked
from headprune.structure.find import find_heads
from headprune.types import Batch


def refuse_unfit_models(model: nn.Module) -> None:
    """Models that are something else at the moment: masked, gated, under an adapter, or partly elsewhere."""
    if is_masked(model):
        raise UnsupportedModelError("The model is inside a `masked` block. Leave the block, then prune.")
    if is_gated(model):
        raise UnsupportedModelError("The model has gates. gates.remove_() takes them off and prunes what they closed.")
    if any(hasattr(module, "base_layer") and hasattr(module, "merge") for module in model.modules()):
        raise UnsupportedModelError(
            "The model carries an adapter (LoRA or another of peft). Merge it first: model = model.merge_and_unload()."
        )
    placement = set(map(str, getattr(model, "hf_device_map", {}).values()))
    if "disk" in placement or ("cpu" in placement and len(placement) > 1):
        raise UnsupportedModelError(
            "Parts of the model are offloaded (hf_device_map). Load it without offloading, prune it, and save it."
        )


def refuse_unpruned_repair(model: nn.Module) -> None:
    """Models between `recover_` and `prune_`: neither the original nor the pruned one."""
    if config_entry.repaired_parts(model):
        raise UnsupportedModelError(
            "The model was repaired (recover_) for heads that are still there: it is neither the original nor the "
            "pruned model. prune_ it with the mask that it was repaired for first."
        )


def matching_repair(
    model: nn.Module, mask: HeadMask, empty_site: EmptySite, example: Batch | None
) -> dict[str, Any] | None:
    """What `recover_` did to this model, if it was for this mask."""
    inner = [path for path in config_entry.repaired_parts(model) if path]
    if inner:
        raise MaskError(f"{inner[0]} was repaired (recover_) by itself. Prune that part, or repair the whole model.")
    repair = config_entry.noted_repair(model)
    if repair is None:
        return None
    heads = find_heads(model, example, neurons=mask.has_neurons)
    if repair["kept"] != config_entry.kept_where_heads_go(mask.filled(heads).checked_for(heads), heads):
        raise MaskError(
            "The model was repaired (recover_) for another mask than this one. Prune it with the mask that it was "
            "repaired for, or start from the original."
        )
    if empty_site == "skip" and not all(repair["kept"].values()):
        raise MaskError("The model was repaired (recover_) with the biases of its sites: empty_site='skip' drops them.")
    return repair
