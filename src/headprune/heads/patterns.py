"""Masks written down: `888444`, `14/31/30`, `top:3`, `odd`, `one`, `random:50%`.

    pattern    = whole | assignments | per component
    assignments= name "=" item { "," name "=" item }          ES=14,ED=31,DS=30   encoder=888444   cross=top:2
    per component = item { "/" item }                          14/31/30 (encoder / decoder / cross)
    item       = layers | counts | amount | cut { "+" cut } | "one" | "random:" amount | "stratified:" amount
    layers     = one digit per layer, kept heads               888444
    counts     = number { "," number }, kept heads per layer   8,8,4,4 (only as a whole pattern)
    amount     = number | number "%"                            kept heads of the component: 14, or #14 where 14 could
                                                               also be two layers of one digit
    cut        = "top:" n | "bottom:" n | "middle:" n | "odd" | "even"     whole layers that lose all heads

Layers count as in the papers: top is nearest the output, `odd` removes the first, third, fifth … layer (our layers
0, 2, 4 …). Where a pattern says how many heads stay but not which, the best by `scores` stay, or without scores a
random choice by `seed`. Values only: nothing here knows a model.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from headprune.errors import PatternError
from headprune.heads import HeadId, HeadMap, HeadMask, HeadScores, Site, canonical_component, heads_to_prune
from headprune.registry import hint

CUTS = ("top", "bottom", "middle", "odd", "even")


def pattern(
    heads: HeadMap,
    text: str,
    *,
    scores: HeadScores | None = None,
    worst: bool = False,
    seed: int = 0,
) -> HeadMask:
    """The mask that a pattern describes. Components that it does not name keep all their heads.

    `scores` decide which heads stay where only a number is given (`worst=True` keeps the lowest instead, as in the
    right half of Budhraja et al.'s Table 2); without scores the choice is random by `seed`.

    Example:
        >>> hp.pattern(hp.find_heads(model), "42", seed=0).to_dict()["encoder.0"]  # four heads below, two above
        [0, 1, 2, 3]
    """
    source = _Source(text)
    order = _Order(heads, scores, worst, seed)
    gone: set[HeadId] = set()
    for component, item in _parts(source, heads):
        sites = [site for site in heads if component in (None, site.component)]
        gone |= _removed(source, item, sites, order)
    return HeadMask.full(heads).without(*sorted(gone))


@dataclass(frozen=True)
class _Item:
    """A piece of the pattern and where it begins."""

    text: str
    start: int


@dataclass(frozen=True)
class _Source:
    text: str

    def refuse(self, item: _Item, reason: str, offset: int = 0) -> NoReturn:
        raise PatternError(f"Pattern '{self.text}' {reason} (character {item.start + offset + 1}).")


class _Order:
    """Which heads go first when only a number is given."""

    def __init__(self, heads: HeadMap, scores: HeadScores | None, worst: bool, seed: int) -> None:
        everything = heads.heads()
        if scores is None:
            shuffled = list(everything)
            random.Random(seed).shuffle(shuffled)
            self.rank = {head: place for place, head in enumerate(shuffled)}
        else:
            view = scores.normalized()
            sign = -1.0 if worst else 1.0
            values = {head: sign * (view[head.site][head.index] or 0.0) for head in everything}
            self.rank = {head: place for place, head in enumerate(sorted(everything, key=values.__getitem__))}

    def first(self, candidates: Iterable[HeadId], count: int) -> set[HeadId]:
        return set(sorted(candidates, key=self.rank.__getitem__)[:count])


def _parts(source: _Source, heads: HeadMap) -> list[tuple[str | None, _Item]]:
    """Which item is for which component."""
    text = source.text
    if not text.strip():
        source.refuse(_Item(text, 0), "is empty")
    if (digits := re.search(r"\d{1000,}", text)) is not None:  # Python reads no number of thousands of digits
        raise PatternError(f"A pattern has a number of {len(digits[0])} digits (character {digits.start() + 1}).")
    if "=" in text:
        return [_assignment(source, item, heads) for item in _split(_Item(text, 0), ",")]
    items = _split(_Item(text, 0), "/")
    if len(items) == 1:
        return [(heads.components[0] if len(heads.components) == 1 else None, items[0])]
    if len(items) != len(heads.components):
        source.refuse(
            items[min(len(items), len(heads.components)) - 1],
            f"has {len(items)} parts; this model has {len(heads.components)} components ({'/'.join(heads.components)})",
        )
    return list(zip(heads.components, items, strict=True))


def _assignment(source: _Source, item: _Item, heads: HeadMap) -> tuple[str, _Item]:
    name, equals, value = item.text.partition("=")
    if not equals:
        source.refuse(item, f"has '{item.text}', expected a component and what it keeps, like ES=14")
    component = canonical_component(name.strip())
    if component not in heads.components:
        source.refuse(item, f"names {component}, which this model does not have ({', '.join(heads.components)})")
    return component, _Item(value, item.start + len(name) + 1)


def _removed(source: _Source, item: _Item, sites: Sequence[Site], order: _Order) -> set[HeadId]:
    """The heads that one item removes from these sites."""
    text = item.text.strip()
    if text == "one":
        return _keep_in_each(sites, [1] * len(sites), order)
    word, colon, value = text.partition(":")
    if word in ("random", "stratified"):
        if not colon:
            source.refuse(item, f"has '{text}', expected how many heads stay, like {word}:50%")
        return _keep_amount(source, _Item(value, item.start + len(word) + 1), sites, order, each=word == "stratified")
    if re.match(r"[a-z]", text):
        return _cut_layers(source, item, sites)
    layers = _layers_of(sites)
    if "," in text:
        return _keep_layers(source, item, _split(item, ","), layers, order)
    if re.fullmatch(r"\d+", text) and len(text) == len(layers):
        if _could_be_count(text, sites, layers):
            source.refuse(item, f"has '{text}', heads per layer or a count? Write {','.join(text)} or #{text}")
        digits = [_Item(digit, item.start + place) for place, digit in enumerate(text)]
        return _keep_layers(source, item, digits, layers, order)
    if re.fullmatch(r"\d{4,}", text):
        source.refuse(item, f"has {len(text)} digits for {len(layers)} layers", min(len(text), len(layers)))
    return _keep_amount(source, item, sites, order, each=False)


def _could_be_count(text: str, sites: Sequence[Site], layers: Sequence[tuple[int, list[Site]]]) -> bool:
    """Whether heads per layer and a count are both possible readings, and differ."""
    per_layer = all(int(d) <= min(s.num_heads for s in group) for d, (_, group) in zip(text, layers, strict=True))
    return per_layer and int(text) <= sum(site.num_heads for site in sites) and int(text) != sum(map(int, text))


def _keep_amount(source: _Source, item: _Item, sites: Sequence[Site], order: _Order, *, each: bool) -> set[HeadId]:
    match = re.fullmatch(r"#?(\d+)|(\d+(?:\.\d+)?)%", item.text.strip())
    if not match:
        known = hint(item.text.strip().partition(":")[0], (*CUTS, "one", "random", "stratified"))
        source.refuse(item, f"has '{item.text.strip()}', expected heads per layer, a count, a share or a word. {known}")
    keep: float | int = int(match[1]) if match[1] else float(match[2]) / 100
    gone: set[HeadId] = set()
    for group in [[site] for site in sites] if each else [list(sites)]:
        present = [head for site in group for head in site.heads()]
        if keep > (len(present) if isinstance(keep, int) else 1.0):
            place = group[0].id if each else " and ".join(dict.fromkeys(site.component for site in group))
            layers = len({site.layer for site in sites})
            told = f" (as heads per layer it would need {layers} digits)" if item.text.isdecimal() and not each else ""
            source.refuse(item, f"keeps {item.text.strip()} heads in {place}, which has only {len(present)}{told}")
        gone |= order.first(present, heads_to_prune(len(present), keep=keep))
    if not gone and isinstance(keep, float) and keep < 1.0:
        most = max(site.num_heads for site in sites) if each else sum(site.num_heads for site in sites)
        least = math.floor(1000 - 1000 / max(1, most)) / 10
        source.refuse(item, f"keeps {item.text.strip()} of {most} heads, which removes none: at most {least:g}% does")
    return gone


def _keep_layers(
    source: _Source, item: _Item, numbers: Sequence[_Item], layers: Sequence[tuple[int, list[Site]]], order: _Order
) -> set[HeadId]:
    if len(numbers) != len(layers):
        place = numbers[min(len(numbers), len(layers) + 1) - 1]
        source.refuse(place, f"gives {len(numbers)} layers, the model has {len(layers)}")
    gone: set[HeadId] = set()
    for number, (_, sites) in zip(numbers, layers, strict=True):
        if not number.text.strip().isdecimal():
            source.refuse(number, f"has '{number.text}' where a number of heads was expected")
        for site in sites:
            if int(number.text) > site.num_heads:
                source.refuse(number, f"keeps {int(number.text)} heads in {site.id}, which has only {site.num_heads}")
        gone |= _keep_in_each(sites, [int(number.text)] * len(sites), order)
    return gone


def _keep_in_each(sites: Sequence[Site], keep: Sequence[int], order: _Order) -> set[HeadId]:
    gone: set[HeadId] = set()
    for site, number in zip(sites, keep, strict=True):
        gone |= order.first(site.heads(), max(0, site.num_heads - number))
    return gone


def _cut_layers(source: _Source, item: _Item, sites: Sequence[Site]) -> set[HeadId]:
    """All heads of whole layers, component by component."""
    gone: set[HeadId] = set()
    for component in dict.fromkeys((site.tower, site.component) for site in sites):
        layers = _layers_of([site for site in sites if (site.tower, site.component) == component])
        chosen: set[int] = set()
        for cut in _split(item, "+"):
            chosen |= set(_cut_places(source, cut, len(layers)))
        for place in chosen:
            for site in layers[place][1]:
                split = [layer for layer in site.layers if layer not in {layers[p][0] for p in chosen}]
                if len(site.layers) > 1 and split and len(chosen) < len(layers):
                    source.refuse(item, f"would split {site.id}, one module that runs in layers {list(site.layers)}")
                gone |= set(site.heads())
    return gone


def _cut_places(source: _Source, cut: _Item, layers: int) -> range | list[int]:
    """Places in the list of layers, the first layer first."""
    word, colon, value = cut.text.strip().partition(":")
    rules: dict[str, Callable[[int], range]] = {
        "top": lambda n: range(layers - n, layers),
        "bottom": lambda n: range(n),
        "middle": lambda n: range((layers - n) // 2, (layers - n) // 2 + n),
    }
    if word in ("odd", "even"):
        if colon:
            source.refuse(cut, f"has '{cut.text.strip()}'; {word} takes no number", len(word))
        return range(0 if word == "odd" else 1, layers, 2)
    if word not in rules:
        source.refuse(cut, f"has '{cut.text.strip()}'. {hint(word, (*CUTS, 'one', 'random', 'stratified'))}")
    if not value.isdecimal() or not 0 <= int(value) <= layers:
        source.refuse(cut, f"has '{cut.text.strip()}', expected a number of layers from 0 to {layers}", len(word) + 1)
    return rules[word](int(value))


def _layers_of(sites: Sequence[Site]) -> list[tuple[int, list[Site]]]:
    """Layer numbers in order, with the sites that each runs."""
    layers: dict[int, list[Site]] = {}
    for site in sites:
        for layer in site.layers:
            layers.setdefault(layer, []).append(site)
    return sorted(layers.items())


def _split(item: _Item, separator: str) -> list[_Item]:
    items, start = [], item.start
    for piece in item.text.split(separator):
        items.append(_Item(piece, start))
        start += len(piece) + 1
    return items
