"""One file a kind of gate; a file put here is found by itself.

`HardConcrete` clips the stretched value: Voita et al. 2019. `BinaryConcrete` rounds it, with the gradient of the
clipped value: Shim et al. 2021. `ExactK` opens exactly k gates.
"""

from __future__ import annotations

import importlib
import pkgutil

from headprune.gates.distributions.binary_concrete import BinaryConcrete
from headprune.gates.distributions.exact_k import ExactK
from headprune.gates.distributions.gate import Gate, GateOptions, Rule, gates, make_gate
from headprune.gates.distributions.hard_concrete import HardConcrete

__all__ = ["BinaryConcrete", "ExactK", "Gate", "GateOptions", "HardConcrete", "Rule", "gates", "make_gate"]

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
