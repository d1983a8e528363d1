"""Gates that learn which heads to keep (Voita et al. 2019, Shim et al. 2021)."""

from headprune.gates.attach import attach_gates, gates_of
from headprune.gates.distributions import BinaryConcrete, ExactK, Gate, HardConcrete, gates
from headprune.gates.model_gates import Gates
from headprune.gates.objective import Objective

__all__ = [
    "BinaryConcrete",
    "ExactK",
    "Gate",
    "Gates",
    "HardConcrete",
    "Objective",
    "attach_gates",
    "gates",
    "gates_of",
]
