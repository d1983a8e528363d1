"""Finding attention in a model."""

from headprune.sites.example import example_inputs
from headprune.sites.find import find_heads, look

__all__ = ["example_inputs", "find_heads", "look"]
