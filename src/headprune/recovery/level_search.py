"""How many units each site keeps: levels shifted between sites at equal cost by what it does to the model's answers.

Scores of sites are added up as if an error of one site meant the same whatever the others do. Here offspring of an
allocation are tried out: some sites keep less and others more, at no higher cost, each with weights refitted for what
it keeps, and what counts is how near the model's answers stay to the whole model's on data that no fit saw.
"""

from __future__ import annotations

import bisect
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from headprune.heads import HeadMask, HeadScores
from headprune.heads.mask import Unit
from headprune.heads.scores import Normalize
from headprune.recovery.levels import Levels
from headprune.scoring.closeness import Closeness, WholeAnswers
from headprune.scoring.context import ScoringContext, batch_rows, evaluation

Table = Mapping[str, Sequence[float]]  # site -> what it costs with 0, 1, 2 … units
HELD = 4  # of so many batches one is held out, to compare on
MEMORY = 4 * 2**30  # bytes of sums of all sites; of larger models levels are not shifted
SHIFTS = (1, 1, 2, 3, 4)  # between two sites each, in one offspring
SIZES = (0.5, 0.25, 0.125)  # of what a site costs on average in the allocation at hand


@dataclass
class Room:
    """What sites cost, and what they may cost together."""

    costs: Table
    limit: float
    floors: Mapping[str, int]  # the fewest units that a site keeps

    def spent(self, counts: Mapping[str, int]) -> float:
        return sum(self.costs[site][count] for site, count in counts.items())

    def most(self, site: str, cost: float) -> int:
        """The largest number of units of a site within a cost."""
        return bisect.bisect_right(self.costs[site], cost * (1 + 1e-9)) - 1

    def shifted(self, counts: Mapping[str, int], draw: random.Random) -> dict[str, int]:
        """An offspring: some sites keep less, and what they leave goes to others."""
        found = dict(counts)
        size = draw.choice(SIZES) * self.spent(counts) / len(counts)
        for _ in range(draw.choice(SHIFTS)):
            giving = [site for site, count in found.items() if count > self.floors[site]]
            if not giving:
                break
            giver = draw.choice(giving)
            left = self.most(giver, max(0.0, self.costs[giver][found[giver]] - size))
            found[giver] = max(self.floors[giver], min(left, found[giver] - 1))
            self._give(found, draw, [site for site in found if site != giver])
        self._give(found, draw, list(found))
        return found

    def _give(self, counts: dict[str, int], draw: random.Random, sites: Sequence[str]) -> None:
        """What is left goes to one site, and what it cannot take to the next."""
        for site in draw.sample(sites, len(sites)):
            room = self.limit - self.spent(counts)
            if room <= 0:
                return
            counts[site] = max(counts[site], self.most(site, self.costs[site][counts[site]] + room))


@dataclass
class Shifter:
    """Looks for better allocations of a model's levels. One serves many budgets."""

    levels: Levels
    whole: WholeAnswers  # what the whole model says to batches that no fit saw
    examples: int  # that one search may run
    at_least: int = 0
    tell: Callable[[str], None] = lambda what: None

    @classmethod
    def of(
        cls,
        context: ScoringContext,
        scores: HeadScores,
        recover: str | None,
        *,
        passes: float,
        unit: Unit = "head",
        view: Normalize | None = None,
        at_least: int = 0,
        tell: Callable[[str], None] = lambda what: None,
    ) -> Shifter | None:
        """None where levels cannot be compared: too little data to hold some out, or a model whose sums are too large
        to keep. One search takes at most so many `passes` over the data."""
        batches = list(context.batches)
        size = sum(8 * (site.num_heads * site.head_dim) ** 2 for site in context.heads)
        if len(batches) < 2 or size > MEMORY or not passes:
            return None
        step = min(HELD, len(batches))
        fitted = [batch for number, batch in enumerate(batches) if number % step != step - 1]
        levels = Levels.of(replace(context, batches=fitted), scores, recover, unit=unit, view=view)
        with torch.inference_mode(False), evaluation(context.model):
            whole = WholeAnswers.of(context, batches[step - 1 :: step])
        return cls(levels, whole, round(passes * sum(map(batch_rows, batches))), at_least, tell)

    def refined(self, mask: HeadMask, costs: Table) -> HeadMask:
        """The best allocation found from that of a mask, which costs no more: the mask itself where none is better."""
        counts = self.levels.counts(mask)
        table = {site: costs.get(site, (0.0,)) for site in counts}
        limit = sum(table[site][count] for site, count in counts.items())
        room = Room(table, limit, self.levels.floors(self.at_least))
        model = self.levels.context.model
        with torch.inference_mode(False), evaluation(model), self.levels.undone(), torch.no_grad():
            self.tell("refitting every site")
            self.levels.around_(counts)
            before = sum(self.distances(counts))
            found = _climbed(self, room, counts)
            if found == counts:
                return mask
            self.levels.around_(found)  # where fits are no longer those of the first allocation
            return self.levels.mask(found) if sum(self.distances(found)) < before else mask

    def distances(self, counts: Mapping[str, int], against: Sequence[float] | None = None) -> list[float]:
        """How far the answers are from the whole model's, of one batch after another. No more batches are run when it
        is further by now than what it is compared with."""
        self.levels.write(counts)
        found: list[float] = []
        for close in self.whole.closeness_by_batch():
            found.append(_distance(close) * close.answers)
            if against is not None and sum(found) >= sum(against[: len(found)]):
                break
        return found


def _climbed(shifter: Shifter, room: Room, counts: dict[str, int]) -> dict[str, int]:
    """Hill climbing: an offspring that is nearer takes the place of its parent."""
    draw, left = random.Random(shifter.levels.context.seed), shifter.examples
    rows = [batch_rows(batch) for batch in shifter.whole.batches]
    found = shifter.distances(counts)
    first, tried = max(sum(found), 1e-30), 0
    while left > 0:
        offspring, tried = room.shifted(counts, draw), tried + 1
        left -= 1  # where nothing can be shifted it ends, too
        if offspring == counts or room.spent(offspring) > room.limit * (1 + 1e-9):
            continue
        distances = shifter.distances(offspring, found)
        left -= sum(rows[: len(distances)])
        if len(distances) == len(found) and sum(distances) < sum(found):
            counts, found = offspring, distances
            shifter.tell(f"levels: {tried} tried, the distance now {sum(found) / first:.0%} of the first")
    return counts


def _distance(close: Closeness) -> float:
    """Of answers: the KL divergence to the whole model's, or the squared error of states."""
    return close.kl if close.kl is not None else close.distance or 0.0
