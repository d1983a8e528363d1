"""The values that everything else passes around: which heads there are, which stay, what they are worth.

Values only: nothing here knows a model, torch or transformers.
"""

from headprune.heads.headmap import HeadId, HeadMap, Site, Skipped, canonical_component
from headprune.heads.mask import HeadMask, heads_to_prune
from headprune.heads.scores import HeadScores

__all__ = [
    "HeadId",
    "HeadMap",
    "HeadMask",
    "HeadScores",
    "Site",
    "Skipped",
    "canonical_component",
    "heads_to_prune",
]
