"""headprune: which attention heads does your Transformer need? Remove the rest for real.

Names are loaded when first used, so that `import headprune` is quick; importing it is also what lets
`from_pretrained` load pruned checkpoints.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from headprune import integration

if TYPE_CHECKING:
    from headprune import compat as compat
    from headprune import stats as stats
    from headprune.budgets.select import select as select
    from headprune.checkpoint.export import export as export
    from headprune.compat import prune_heads as prune_heads
    from headprune.cost.measurement import measure as measure
    from headprune.errors import HeadpruneError as HeadpruneError
    from headprune.gates import BinaryConcrete as BinaryConcrete
    from headprune.gates import ExactK as ExactK
    from headprune.gates import Gates as Gates
    from headprune.gates import HardConcrete as HardConcrete
    from headprune.gates import Objective as Objective
    from headprune.gates import attach_gates as attach_gates
    from headprune.gates import gates_of as gates_of
    from headprune.gates.trainer import GateCallback as GateCallback
    from headprune.gates.trainer import GateMixin as GateMixin
    from headprune.gates.trainer import GateTrainer as GateTrainer
    from headprune.gates.trainer import choose_trainable_ as choose_trainable_
    from headprune.heads import HeadId as HeadId
    from headprune.heads import HeadMap as HeadMap
    from headprune.heads import HeadMask as HeadMask
    from headprune.heads import HeadScores as HeadScores
    from headprune.heads.patterns import pattern as pattern
    from headprune.lab.analysis.functions import find_functions as find_functions
    from headprune.lab.models.configuration import AllAttentionConfig as AllAttentionConfig
    from headprune.lab.models.configuration import TransformerXLConfig as TransformerXLConfig
    from headprune.lab.models.demo import demo_model as demo_model
    from headprune.lab.models.memory import SegmentMemory as SegmentMemory
    from headprune.lab.models.modeling import AllAttentionForCausalLM as AllAttentionForCausalLM
    from headprune.lab.models.modeling import TransformerXLForCausalLM as TransformerXLForCausalLM
    from headprune.masking import masked as masked
    from headprune.memory import memory_limit as memory_limit
    from headprune.on_disk import stream as stream
    from headprune.recovery import recover_ as recover_
    from headprune.recovery import search as search
    from headprune.scoring import score as score
    from headprune.shrink import Shrunk as Shrunk
    from headprune.shrink import shrink_ as shrink_
    from headprune.structure.find import find_heads as find_heads
    from headprune.surgery.plan import plan as plan
    from headprune.surgery.prune import prune_ as prune_

__version__ = "0.1.0"

_PUBLIC = {
    "AllAttentionConfig": "headprune.lab.models.configuration",
    "AllAttentionForCausalLM": "headprune.lab.models.modeling",
    "SegmentMemory": "headprune.lab.models.memory",
    "TransformerXLConfig": "headprune.lab.models.configuration",
    "TransformerXLForCausalLM": "headprune.lab.models.modeling",
    "HeadId": "headprune.heads",
    "HeadMap": "headprune.heads",
    "HeadMask": "headprune.heads",
    "HeadScores": "headprune.heads",
    "HeadpruneError": "headprune.errors",
    "BinaryConcrete": "headprune.gates",
    "ExactK": "headprune.gates",
    "Gates": "headprune.gates",
    "HardConcrete": "headprune.gates",
    "Objective": "headprune.gates",
    "attach_gates": "headprune.gates",
    "gates_of": "headprune.gates",
    "GateCallback": "headprune.gates.trainer",
    "GateMixin": "headprune.gates.trainer",
    "GateTrainer": "headprune.gates.trainer",
    "choose_trainable_": "headprune.gates.trainer",
    "demo_model": "headprune.lab.models.demo",
    "export": "headprune.checkpoint.export",
    "find_functions": "headprune.lab.analysis.functions",
    "find_heads": "headprune.structure.find",
    "masked": "headprune.masking",
    "memory_limit": "headprune.memory",
    "pattern": "headprune.heads.patterns",
    "recover_": "headprune.recovery",
    "search": "headprune.recovery",
    "score": "headprune.scoring",
    "Shrunk": "headprune.shrink",
    "shrink_": "headprune.shrink",
    "stream": "headprune.on_disk",
    "select": "headprune.budgets",
    "measure": "headprune.cost.measurement",
    "plan": "headprune.surgery.plan",
    "prune_": "headprune.surgery.prune",
    "prune_heads": "headprune.compat",
}

_MODULES = ("compat", "stats")

__all__ = ["__version__", *sorted((*_PUBLIC, *_MODULES))]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"headprune.{name}")
    if name in _PUBLIC:
        value = getattr(importlib.import_module(_PUBLIC[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'headprune' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)


integration.install()
