"""What each head is worth. One file a method in `methods/`; `score` runs any of them by name."""

from headprune.scoring import methods as methods
from headprune.scoring.run import score, scorers, unit_options

__all__ = ["score", "scorers", "unit_options"]
