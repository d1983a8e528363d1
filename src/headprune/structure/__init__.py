"""Finding attention in a model."""

from headprune.structure.example import example_inputs
from headprune.structure.find import find_heads, model_structure

__all__ = ["example_inputs", "find_heads", "model_structure"]
