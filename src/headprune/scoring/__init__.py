"""What each head is worth. One file a method; `score` runs any of them by name."""

from headprune.scoring import (
    ablation,
    attention,
    curvature,
    fisher,
    fisher_block,
    focus,
    magnitude,
    output_norm,
    random,
    reconstruction,
    relevance,
    residual,
    sensitivity,
)
from headprune.scoring.registry import scorers, unit_options
from headprune.scoring.run import score

__all__ = [
    "ablation",
    "attention",
    "curvature",
    "fisher",
    "fisher_block",
    "focus",
    "magnitude",
    "output_norm",
    "random",
    "reconstruction",
    "relevance",
    "residual",
    "score",
    "scorers",
    "sensitivity",
    "unit_options",
]
