"""Finding attention in a model."""

from headprune.sites.find import find_heads, look
from headprune.sites.example import example_inputs

__all__ = ["example_inputs", "find_heads", "look"]
