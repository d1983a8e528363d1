"""A pruned checkpoint that carries the code to load it: a modelling file of its own, and nothing of ours installed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn

from headprune.checkpoint import config_entry
from headprune.checkpoint.exports.registry import exports
from headprune.checkpoint.pretrained import auto_classes
from headprune.checkpoint.source_bundle import bundle
from headprune.errors import UnsupportedModelError
from headprune.files import write_text
from headprune.structure.run import unwrapped
from headprune.surgery.prune import refuse_unfit_models, refuse_unpruned_repair
from headprune.types import Batch

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MODULE = "modeling_pruned"
NEEDED = [("headprune.surgery.apply", "apply_"), ("headprune.surgery.edits", "Edits")]
HEADER = """# {name} with attention heads removed. The config's entry `headprune` says which rows and columns are
# gone; here the empty model is cut to them before its weights are loaded. Load it with trust_remote_code=True.

"""
FOOTER = '''

class {name}(Whole):
    """{name} without the heads that were removed."""

    @classmethod
    def is_custom_code(cls) -> bool:
        return False  # its weights have the library's own names, which some classes change while saving and loading

    def post_init(self) -> None:
        super().post_init()
        entry = getattr(self.config, "headprune", None)
        if entry is not None and not getattr(type(self), "_headprune_installed", False):  # it would have done it
            apply_(self, Edits.from_dict(entry["edits"]), stored=True)
'''


@exports.add(
    "standalone",
    loading="The code to load it is in the folder: from_pretrained(..., trust_remote_code=True) is all it takes.",
)
def save_standalone(model: nn.Module, folder: Path, example: Batch | None) -> None:
    """Save the pruned model with its modelling file into a folder that is there."""
    model = unwrapped(model)
    refuse_unfit_models(model)
    refuse_unpruned_repair(model)
    name = type(model).__name__
    if config_entry.read(model) is None:
        raise UnsupportedModelError("No head of this model was removed: save it with save_pretrained.")
    autos = auto_classes(type(model))
    if not autos:
        raise UnsupportedModelError(
            f"{name} is not a class that transformers' Auto classes know (its module is {type(model).__module__}): a "
            "file in the checkpoint could not build on it. Save it with save_pretrained, and load it with headprune."
        )
    saved: PreTrainedModel = model
    saved.save_pretrained(folder)
    source = bundle(NEEDED, [f"from transformers import {name} as Whole"])
    write_text(folder / f"{MODULE}.py", HEADER.format(name=name) + source + FOOTER.format(name=name))
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["auto_map"] = dict.fromkeys(autos, f"{MODULE}.{name}")
    write_text(folder / "config.json", json.dumps(config, indent=2) + "\n")
