"""What each head is worth. One file a method; `score` runs any of them by name."""

from headprune.scoring import (
    ablation,
    attention,
    fisher,
    fisher_block,
    magnitude,
    output_norm,
    random,
    reconstruction,
    relevance,
    residual,
    sensitivity,
)
from headprune.scoring.registry import scorers
from headprune.scoring.run import score

__all__ = [
    "ablation",
    "attention",
    "fisher",
    "fisher_block",
    "magnitude",
    "output_norm",
    "random",
    "reconstruction",
    "relevance",
    "residual",
    "score",
    "scorers",
    "sensitivity",
]
