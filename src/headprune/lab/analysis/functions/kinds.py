"""Positional, syntactic and rare-token heads, as Voita et al. 2019 (section 5) tell them apart.

Where the paper is silent, this is what is done. Attention between words is pooled from that between tokens (queries
averaged, keys added up); special tokens are no words, so that attention to them never is the maximum. The baseline of
a relation is its most frequent offset on the same data; a head must beat it by 10 points. A head points to the token
with the largest mean attention in the sentence; it is a rare-token head if that is the rarest one in at least half of
the sentences whose rarest token is not among the 500 most frequent ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headprune.errors import DataError, UnsupportedModelError
from headprune.heads import HeadId, HeadMap, HeadMask
from headprune.hooks import recorded_attention
from headprune.lab.analysis.functions.sentences import Encoded, Sentence, encoded
from headprune.scoring.context import evaluation
from headprune.stats import proportion_interval
from headprune.structure.find import find_heads
from headprune.structure.run import unwrapped
from headprune.tasks.tags import check_splits_words
from headprune.types import Tokenizer

RELATIONS = ("nsubj", "obj", "amod", "advmod")
TO_HEAD, TO_DEPENDENT = "dependent to head", "head to dependent"


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """When a head is said to have a function."""

    position: float = 0.9  # share of tokens whose largest weight is at one relative position
    margin: float = 0.10  # above the best fixed offset, in absolute points
    rare: float = 0.5  # share of sentences in which the head points to the rarest token
    frequent: int = 500  # the most frequent tokens, which are not rare
    pairs: int = 30  # of a relation at least, to say anything about it


@dataclass
class _Counts:
    """What is counted per head of a site; every tensor begins with (heads, …)."""

    largest: Tensor  # summed largest weights
    offsets: list[Counter[int]]  # relative position of the largest weight
    hits: dict[tuple[str, str], Tensor]
    rare: Tensor


@dataclass(frozen=True)
class Findings:
    """What every head does, and what was needed to tell."""

    heads: dict[HeadId, dict[str, Any]]
    relations: dict[str, dict[str, Any]]  # "nsubj, dependent to head" -> pairs, baseline, its offset, all offsets
    sentences: int
    tokens: int
    rare_sentences: int
    thresholds: Thresholds

    def functions(self, head: HeadId) -> list[str]:
        found: list[str] = self.heads[head]["functions"]
        return found

    def counts(self, mask: HeadMask | None = None) -> dict[str, int]:
        """How many heads (of a mask) have which function; a head may have several, or none ("other")."""
        counted: Counter[str] = Counter()
        for head, row in self.heads.items():
            if mask is None or head in mask:
                counted.update(row["functions"] or ["other"])
        return {name: counted.get(name, 0) for name in ("positional", "syntactic", "rare", "other")}

    def best(self) -> dict[str, tuple[HeadId, float]]:
        """For each relation and direction, the head that finds it best (Voita et al., Table 1)."""
        return {
            name: max(
                ((head, row["relations"][name]["accuracy"]) for head, row in self.heads.items()),
                key=lambda item: item[1],
            )
            for name in self.relations
        }

    def to_dict(self) -> dict[str, object]:
        return {
            "sentences": self.sentences,
            "tokens": self.tokens,
            "rare_sentences": self.rare_sentences,
            "thresholds": asdict(self.thresholds),
            "relations": self.relations,
            "counts": self.counts(),
            "best": {name: {"head": str(head), "accuracy": found} for name, (head, found) in self.best().items()},
            "heads": {str(head): row for head, row in self.heads.items()},
        }


def find_functions(
    model: nn.Module,
    sentences: Sequence[Sentence],
    tokenizer: Tokenizer,
    *,
    thresholds: Thresholds | None = None,
    max_length: int = 128,
    batch_size: int = 16,
    heads: HeadMap | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Findings:
    """Look at every self-attention head on sentences with trees. Cost: one forward pass with eager attention.

    Example:
        >>> from headprune.lab.analysis.functions import Sentence
        >>> tree = Sentence(words=("heads", "look", "back"), heads=(1, None, 1), relations=("nsubj", "root", "advmod"))
        >>> findings = hp.find_functions(model, [tree], tokenizer)
    """
    model, limits = unwrapped(model), thresholds or Thresholds()
    check_splits_words(tokenizer)
    ready = list(encoded(sentences, tokenizer, max_length))
    if not ready:
        raise DataError(f"Of {len(sentences)} sentences none fits into {max_length} tokens. Give shorter ones.")
    found = heads if heads is not None else find_heads(model)
    sites = [site for site in found if site.num_heads and site.component != "cross"]
    if not sites:
        raise UnsupportedModelError("The model has no self-attention heads whose function could be told.")
    rarest = _Rarest(ready, limits.frequent)
    counts = {site.id: _empty(site.num_heads) for site in sites}
    ready.sort(key=lambda item: len(item.tokens))
    tokens = 0
    with evaluation(model), torch.no_grad():
        for start in range(0, len(ready), batch_size):
            progress("looking at attention")
            batch = ready[start : start + batch_size]
            with recorded_attention(model, {site.id: site.path for site in sites}) as maps:
                _run(model, batch, tokenizer)
            for site in sites:
                if site.id not in maps:
                    raise UnsupportedModelError(f"{site.id} shows no attention map even when run eagerly.")
                for row, item in enumerate(batch):
                    size = len(item.tokens)
                    _count(counts[site.id], maps[site.id][row, :, :size, :size].float().cpu(), item, rarest)
            tokens += sum(sum(word is not None for word in item.word_of_token) for item in batch)
    relations = _relations(ready)
    rows = {
        HeadId(site.id, head): _described(counts[site.id], place, relations, tokens, rarest.sentences, limits)
        for site in sites
        for place, head in enumerate(site.kept)
    }
    return Findings(rows, relations, len(ready), tokens, rarest.sentences, limits)


def _run(model: nn.Module, batch: Sequence[Encoded], tokenizer: Tokenizer) -> None:
    padded = tokenizer.pad({"input_ids": [list(item.tokens) for item in batch]}, padding_side="right",
                           return_tensors="pt")  # fmt: skip
    device = next(model.parameters()).device
    inputs = {name: value.to(device) for name, value in padded.items() if name in ("input_ids", "attention_mask")}
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        inputs["decoder_input_ids"] = inputs["input_ids"]
        inputs["decoder_attention_mask"] = inputs["attention_mask"]
    model(**inputs)


class _Rarest:
    """How often every token occurs in these sentences, and which is the rarest of each."""

    def __init__(self, ready: Sequence[Encoded], frequent: int) -> None:
        self.counts = Counter(
            token
            for item in ready
            for token, word in zip(item.tokens, item.word_of_token, strict=True)
            if word is not None
        )
        self.common = {token for token, _ in self.counts.most_common(frequent)}
        self.sentences = sum(bool(self.places(item)) for item in ready)

    def places(self, item: Encoded) -> list[int]:
        """Where the sentence's rarest token stands, or several that are equally rare; none if all are frequent."""
        real = [place for place, word in enumerate(item.word_of_token) if word is not None]
        fewest = min(self.counts[item.tokens[place]] for place in real)
        return [
            place
            for place in real
            if self.counts[item.tokens[place]] == fewest and item.tokens[place] not in self.common
        ]


def _empty(heads: int) -> _Counts:
    names = [(relation, way) for relation in RELATIONS for way in (TO_HEAD, TO_DEPENDENT)]
    return _Counts(
        torch.zeros(heads, dtype=torch.float64),
        [Counter() for _ in range(heads)],
        {name: torch.zeros(heads, dtype=torch.float64) for name in names},
        torch.zeros(heads, dtype=torch.float64),
    )


def _count(counts: _Counts, maps: Tensor, item: Encoded, rarest: _Rarest) -> None:
    """Add one sentence; maps are (heads, tokens, tokens)."""
    real = torch.tensor([word is not None for word in item.word_of_token])
    inner = maps.masked_fill(~real[None, None, :], -1.0)[:, real]  # (heads, real queries, tokens)
    places = real.nonzero().flatten()
    largest, at = inner.max(-1)
    counts.largest += largest.double().sum(1)
    offsets = (at - places[None, :]).tolist()
    for head, row in enumerate(offsets):
        counts.offsets[head].update(row)
    queries, keys = item.pooling()
    points = torch.einsum("wt,hts,vs->hwv", queries, maps, keys).argmax(-1)  # (heads, words): where each word looks
    for relation in RELATIONS:
        for dependent, head_word in item.sentence.pairs(relation):
            counts.hits[relation, TO_HEAD] += (points[:, dependent] == head_word).double()
            counts.hits[relation, TO_DEPENDENT] += (points[:, head_word] == dependent).double()
    rare = rarest.places(item)
    if rare:
        mean = maps[:, real].mean(1).masked_fill(~real[None, :], -1.0)  # (heads, tokens)
        counts.rare += torch.isin(mean.argmax(-1), torch.tensor(rare)).double()


def _relations(ready: Sequence[Encoded]) -> dict[str, dict[str, Any]]:
    """For each relation and direction: how many pairs, and the offset that a fixed guess would take."""
    table = {}
    for relation in RELATIONS:
        offsets: Counter[int] = Counter()
        for item in ready:
            offsets.update(head - dependent for dependent, head in item.sentence.pairs(relation))
        for way, sign in ((TO_HEAD, 1), (TO_DEPENDENT, -1)):
            total = sum(offsets.values())
            best, hits = offsets.most_common(1)[0] if offsets else (0, 0)
            table[f"{relation}, {way}"] = {
                "pairs": total,
                "baseline": hits / total if total else 0.0,
                "baseline_offset": sign * best,
                "offsets": {str(sign * offset): count for offset, count in sorted(offsets.items())},
            }
    return table


def _described(
    counts: _Counts, head: int, relations: dict[str, dict[str, Any]], tokens: int, rare: int, limits: Thresholds
) -> dict[str, Any]:
    offset, hits = counts.offsets[head].most_common(1)[0]
    found: dict[str, Any] = {}
    for (relation, way), table in counts.hits.items():
        name = f"{relation}, {way}"
        pairs, right = relations[name]["pairs"], int(table[head])
        interval = proportion_interval(right, pairs)
        found[name] = {
            "accuracy": right / pairs if pairs else 0.0,
            "interval": [interval.low, interval.high],
            "above_baseline": (right / pairs if pairs else 0.0) - relations[name]["baseline"],
        }
    good = [
        name
        for name, row in found.items()
        if relations[name]["pairs"] >= limits.pairs and row["above_baseline"] >= limits.margin
    ]
    share, pointed = hits / max(1, tokens), float(counts.rare[head]) / rare if rare else 0.0
    functions = ["positional"] if share >= limits.position else []
    functions += ["syntactic"] if good else []
    functions += ["rare"] if rare and pointed >= limits.rare else []
    return {
        "confidence": float(counts.largest[head]) / max(1, tokens),
        "offset": offset,
        "offset_share": share,
        "relations": found,
        "syntactic": sorted(good, key=lambda name: -found[name]["above_baseline"]),
        "rare_share": pointed,
        "functions": functions,
    }
