"""Values as commands store them: by file, or by the folder that a command wrote."""

from __future__ import annotations

from pathlib import Path

from headprune.files import read_text
from headprune.heads.headmap import HeadMap
from headprune.heads.mask import HeadMask
from headprune.heads.scores import HeadScores


def read_mask(path: Path, heads: HeadMap | None = None) -> HeadMask:
    """A mask file; with `heads`, also checked to be for that model."""
    return HeadMask.from_json(read_text(path, "mask"), heads)


def read_scores(path: Path) -> HeadScores:
    return HeadScores.from_json(read_text(path, "scores"))
