"""Which heads `headprune prune` removes: by file, name, score, pattern, budget or chance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headprune.cli.options import amount
from headprune.errors import FileFormatError, MaskError

if TYPE_CHECKING:
    from headprune.heads import HeadMap, HeadMask, HeadScores


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The options as typed."""

    mask: Path | None = None
    heads: str | None = None
    scores: Path | None = None
    pattern: str | None = None
    prune: str | None = None
    keep: str | None = None
    max_drop: float | None = None
    per: str = "model"
    at_least: int = 0
    unit: str = "head"
    seed: int = 0

    def check(self) -> None:
        """One way of choosing, and no more."""
        amounts = [name for name in ("prune", "keep", "max_drop", "pattern") if getattr(self, name) is not None]
        if self.mask is not None or self.heads is not None:
            if amounts or self.scores is not None or (self.mask is not None and self.heads is not None):
                raise MaskError("--mask and --heads say it all: give one of them alone.")
        elif len(amounts) != 1:
            raise MaskError(
                "Say which heads go with one of --mask, --heads, --prune, --keep, --pattern or --max-drop "
                "(with --scores the lowest go, without them a random choice)."
            )
        if self.max_drop is not None and self.scores is None:
            raise MaskError("--max-drop needs an order to prune in: give --scores.")


def choose(
    choice: Choice, found: HeadMap, budget: Callable[[HeadScores], HeadMask] | None = None
) -> tuple[HeadMask, str]:
    """The mask, and in words how it was chosen. `budget` finds the furthest mask within --max-drop."""
    from headprune.heads import HeadMask

    if choice.mask is not None:
        return HeadMask.from_json(read_text(choice.mask, "mask"), found), f"the mask file {choice.mask.name}"
    if choice.heads is not None:
        names = [name.strip() for name in choice.heads.split(",") if name.strip()]
        return HeadMask.full(found).without(*names), "name"
    scores = read_scores(choice.scores) if choice.scores is not None else None
    by = f"{scores.method} on {scores.data or 'unnamed data'}" if scores is not None else f"chance, seed {choice.seed}"
    if choice.pattern is not None:
        from headprune.patterns import pattern

        return pattern(found, choice.pattern, scores=scores, seed=choice.seed), f"pattern {choice.pattern} by {by}"
    if choice.max_drop is not None and scores is not None and budget is not None:
        return budget(scores), f"{by}, as far as {choice.max_drop} points of drop allow"
    how: dict[str, Any] = {"unit": choice.unit}
    how |= {name: amount(text) for name in ("prune", "keep") if (text := getattr(choice, name)) is not None}
    share = f"prune {choice.prune}" if choice.prune is not None else f"keep {choice.keep}"
    if scores is None:
        return HeadMask.random(found, seed=choice.seed, **how), f"{share} by {by}, unit {choice.unit}"
    from headprune.selection import select

    chosen = select(scores, found, normalize=scores.view, per=choice.per, at_least=choice.at_least, **how)  # type: ignore[arg-type]
    return chosen, f"{share} by {by}, unit {choice.unit}"


def read_scores(path: Path) -> HeadScores:
    from headprune.heads import HeadScores

    return HeadScores.from_json(read_text(path, "scores"))


def read_text(path: Path, kind: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FileFormatError(f"The {kind} file '{path}' cannot be read: {error}.") from error
