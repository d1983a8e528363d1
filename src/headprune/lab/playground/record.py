"""What the page shows of a model and data: every point of every slider is measured, none is guessed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headprune.cost.measurement import measure
from headprune.errors import DataError, HeadpruneError, UnsupportedModelError
from headprune.heads import HeadMap, HeadMask, HeadScores
from headprune.heads.mask import Unit, head_units
from headprune.heads.scores import select
from headprune.lab.analysis.functions import Sentence as Words
from headprune.lab.analysis.functions import find_functions
from headprune.lab.playground.answers import Said, answers_kind, class_names, last_logits, said_to_each
from headprune.lab.playground.attention import attention_of, packed, tokens_of
from headprune.lab.playground.content import (
    Answers,
    Content,
    Example,
    Measured,
    Point,
    Sentence,
    Way,
    Worth,
    kept_of,
    rows_of,
)
from headprune.masking import masked
from headprune.scoring.context import ROW, evaluation, model_inputs
from headprune.shrink.shrunk import Shrunk
from headprune.structure.find import find_heads
from headprune.surgery.prune import temporarily_pruned
from headprune.tasks.data import TaskData
from headprune.tasks.task import Evaluation, Examples, evaluate

LENGTH = 128  # of the forward pass whose MACs are counted
SHOWN = 12  # of the random sample
SENTENCES, TOKENS = 8, 28  # whose attention is shown, and how long they are at most
MAP_BYTES = 1_200_000  # of attention maps in a page
MOST_HEADS = 400  # that are switched off one by one on the sentences


@dataclass(frozen=True, kw_only=True)
class Smaller:
    """A model that `shrink` made, with what makes it."""

    model: nn.Module
    shrunk: Shrunk
    command: str = ""


@dataclass
class Recorder:
    """A model, its task and the examples that are asked: none of those that heads were chosen by."""

    model: nn.Module
    data: TaskData
    rows: Examples
    seed: int = 0
    tell: Callable[[str], None] = lambda what: None
    kind: Answers = "none"
    heads: HeadMap = field(init=False)

    def __post_init__(self) -> None:
        self.heads = find_heads(self.model)
        self.batches = self.data.batches(self.rows)

    def asked(self, model: nn.Module, mask: HeadMask | None = None) -> tuple[Evaluation, list[Said]]:
        """The score, and every answer in the order of the examples."""
        said: dict[int, Said] = {}

        def keep(outputs: object, batch: Mapping[str, Any]) -> None:
            cut, shown = _before_last(outputs, batch)
            if self.kind == "none":
                self.kind = answers_kind(shown, cut, self.data.config)
            if self.kind != "none":
                found = said_to_each(self.kind, shown, cut, self.data.processor)
                said.update(zip(batch[ROW].tolist(), found, strict=True))

        heads = self.heads if mask is not None else None
        found = evaluate(model, self.batches, self.data.task, mask=mask, heads=heads, keep=keep)
        return found, [said[row] for row in sorted(said)]

    def by_heads(self, scores: HeadScores, steps: int, command: str) -> Way:
        """Heads go, the least worth first; those that are left are as they were."""
        unit: Unit = "group" if any(site.num_kv_heads < site.num_heads for site in self.heads) else "head"
        total = len(head_units(self.heads, unit))
        counts = sorted({round(total * step / steps) for step in range(steps + 1)})
        points = []
        for count in counts:
            mask = select(scores, self.heads, prune=count, unit=unit)
            self.tell(f"{len(self.heads) - len(mask)} of {len(self.heads)} heads masked")
            with temporarily_pruned(self.model, mask):
                size = measure(self.model, batch=1, length=LENGTH, repeats=0)
            found, said = self.asked(self.model, mask)
            label = f"{len(self.heads) - len(mask)} of {len(self.heads)} heads removed"
            made = command.replace("{count}", str(len(self.heads) - len(mask))) if count else ""
            points.append(
                self._point(found, said, label=label, heads=len(mask), neurons=0, parameters=size.parameters.total,
                            macs=size.macs.total, kept=kept_of(self.heads, mask), command=made)
            )  # fmt: skip
        return Way(name=f"heads, least worth first ({scores.method})", axis="heads", points=tuple(points))

    def by_budget(self, smaller: Sequence[Smaller]) -> Way:
        """What `shrink` made: heads and neurons are gone, what is left was repaired."""
        every = find_heads(self.model, neurons=any(one.shrunk.before.neurons for one in smaller))
        first = smaller[0].shrunk
        found, said = self.asked(self.model)
        whole = first.before
        points = [
            self._point(found, said, label="the whole model", heads=whole.heads, neurons=whole.neurons,
                        parameters=whole.parameters, macs=whole.macs, kept=kept_of(every, HeadMask.full(every)))
        ]  # fmt: skip
        for one in sorted(smaller, key=lambda one: -one.shrunk.after.macs):
            self.tell(f"asking the model with {one.shrunk.macs_left:.0%} of the MACs")
            found, said = self.asked(one.model)
            after, speed = one.shrunk.after, one.shrunk.speed
            kept = kept_of(every, HeadMask.from_dict(every, one.shrunk.kept))
            timed = None
            if speed is not None:
                low, high = speed.spread
                timed = Measured(speedup=speed.speedup, low=low, high=high, control=speed.control)
            points.append(
                self._point(found, said, label=f"{one.shrunk.macs_left:.0%} of the MACs left", heads=after.heads,
                            neurons=after.neurons, parameters=after.parameters, macs=after.macs, kept=kept, speed=timed,
                            price=one.shrunk.price_text(), command=one.command)
            )  # fmt: skip
        return Way(name="budget, heads and neurons, repaired (shrink)", axis="MACs", points=tuple(points))

    def _point(self, found: Evaluation, said: Sequence[Said], **more: Any) -> Point:
        interval = found.interval(seed=self.seed)
        return Point(
            score=found.score, interval=(interval.low, interval.high),
            answers=tuple(round(one.share, 3) for one in said), chosen=tuple(one.chosen for one in said),
            words=tuple(one.words for one in said) if self.kind == "words" else (), **more,
        )  # fmt: skip

    def examples(self) -> tuple[Example, ...]:
        """The texts, with a random sample of them marked."""
        chosen = set(np.random.default_rng(self.seed).permutation(len(self.rows))[:SHOWN].tolist())
        return tuple(
            Example(text=self._text(row["input_ids"]), label=_label(row, self.kind), sampled=place in chosen)
            for place, row in enumerate(self.rows.features)
        )  # fmt: skip

    def _text(self, ids: Sequence[int]) -> str:
        if self.kind == "words":
            ids = list(ids)[:-1]
            text = str(self.data.processor.decode(ids[-40:], skip_special_tokens=True))
            return f"… {text}" if len(ids) > 40 else text
        return str(self.data.processor.decode(ids, skip_special_tokens=True))

    def sentences(self) -> tuple[Sentence, ...]:
        """Attention on the sentences of the random sample that are short enough, and what each head does to them."""
        marked = [row for row, one in zip(self.rows.features, self.examples(), strict=True) if one.sampled]
        short = [row for row in marked if 3 < len(row["input_ids"]) <= TOKENS] or [_cut(marked[0])]
        shown = short[:SENTENCES]
        self.tell("looking at attention")
        batch = self.rows.collate(shown)
        inputs = model_inputs(batch)
        with evaluation(self.model), torch.no_grad():
            with attention_of(self.model, self.heads) as maps:
                whole = self.model(**inputs)
            changes = self._without_each(inputs, whole)
        found: list[Sentence] = []
        room = MAP_BYTES
        for place, row in enumerate(shown):
            ids = row["input_ids"]
            packs = packed(maps, place, len(ids))
            room -= sum(map(len, packs.values()))
            if room < 0 and found:
                break
            of = self._of(whole, inputs, place)
            without = {site: tuple(line[place] for line in lines) for site, lines in changes.items()}
            found.append(Sentence(tokens=tokens_of(self.data.processor, ids), maps=packs, without=without, of=of))
        return tuple(found)

    def _shares(self, outputs: object, inputs: Mapping[str, object]) -> Tensor | None:
        """The share of each answer, (batch, answers)."""
        logits = getattr(outputs, "logits", None)
        if self.kind == "none" or logits is None:
            return None
        logits = logits.float()
        return (logits if self.kind == "classes" else last_logits(logits, inputs)).softmax(-1)

    def _of(self, outputs: object, inputs: Mapping[str, object], place: int) -> str:
        shares = self._shares(outputs, inputs)
        if shares is None:
            return ""
        best = int(shares[place].argmax())
        if self.kind == "classes":
            return class_names(self.data.config, shares.shape[1])[best]
        return str(self.data.processor.decode([best])).strip()

    def _without_each(self, inputs: Mapping[str, object], whole: object) -> dict[str, list[list[float]]]:
        """By site and head: how the share of each sentence's answer changes when the head is off."""
        before = self._shares(whole, inputs)
        if before is None or len(self.heads) > MOST_HEADS:
            return {}
        best = before.argmax(-1, keepdim=True)
        full = HeadMask.full(self.heads)
        found: dict[str, list[list[float]]] = {}
        for site in self.heads.attention:
            self.tell(f"switching off the heads of {site.id}")
            for head in site.heads():
                with masked(self.model, full.without(head), heads=self.heads):
                    now = self._shares(self.model(**inputs), inputs)
                assert now is not None
                change = (now - before).gather(1, best)[:, 0]
                found.setdefault(site.id, []).append([round(float(one), 4) for one in change])
        return found

    def functions(self, most: int = 64) -> dict[str, tuple[str, ...]]:
        """What heads do on a part of the examples, as far as it can be told without trees."""
        texts = [one.text for one in self.examples()][:most]
        words = [Words(tuple(text.split()), (None,) * len(text.split()), ("root",) * len(text.split()))
                 for text in texts if 1 < len(text.split()) <= 60]  # fmt: skip
        try:
            self.tell("telling positional heads")
            found = find_functions(self.model, words, self.data.processor, heads=self.heads)
        except (DataError, UnsupportedModelError, HeadpruneError):
            return {}  # tokenizers that do not split words, models whose attention is not shown
        return {str(head): tuple(_does(row)) for head, row in found.heads.items()}

    def content(
        self, ways: Sequence[Way], scores: HeadScores | None, *, title: str, about: str, split: str,
        facts: Sequence[tuple[str, str]] = (),
    ) -> Content:  # fmt: skip
        """Everything together."""
        every = find_heads(self.model, neurons=True) if any(p.neurons for w in ways for p in w.points) else self.heads
        count = getattr(self.data.config, "num_labels", 0) if self.kind == "classes" else 0
        worth = None
        if scores is not None:
            values = {site: tuple(line) for site, line in scores.normalized().items() if site in self.heads}
            worth = Worth(name=scores.method, values=values, functions=self.functions())
        return Content(
            title=title, about=about, sites=rows_of(every), worth=worth, ways=tuple(ways), answers=self.kind,
            labels=class_names(self.data.config, count), metric=self.data.task.metric.name,
            less_is_better=self.data.task.metric.gain(0.0, 1.0) < 0,
            data=f"{len(self.rows)} examples of {split}", examples=self.examples() if self.kind != "none" else (),
            sentences=self.sentences(), facts=tuple(facts),
        )  # fmt: skip


def _before_last(outputs: object, batch: Mapping[str, object]) -> tuple[dict[str, Any], Any]:
    """Of running text, what is said before its last word, so that the page knows what came next."""
    logits, ids = getattr(outputs, "logits", None), batch.get("input_ids")
    inputs = model_inputs(batch)
    if not isinstance(logits, Tensor) or not isinstance(ids, Tensor) or logits.dim() != 3 or ids.shape[1] < 2:
        return inputs, outputs
    mask = batch.get("attention_mask")
    mask = mask.clone() if isinstance(mask, Tensor) else torch.ones_like(ids)
    last = (torch.arange(mask.shape[1]).expand_as(mask) * mask.cpu().bool()).amax(1)
    mask[torch.arange(len(ids)), last] = 0
    return {**inputs, "attention_mask": mask}, outputs


def _label(row: Mapping[str, Any], kind: Answers) -> int | None:
    label = row["input_ids"][-1] if kind == "words" else row.get("labels")
    return int(label) if isinstance(label, int | float) and int(label) == label else None


def _cut(row: Mapping[str, Any]) -> dict[str, Any]:
    length = len(row["input_ids"])
    return {name: value[:TOKENS] if isinstance(value, list) and len(value) == length else value
            for name, value in row.items()}  # fmt: skip


def _does(row: Mapping[str, Any]) -> list[str]:
    """In words."""
    offset, share = row["offset"], row["offset_share"]
    place = {0: "the word itself", 1: "the next token", -1: "the token before"}.get(offset, f"offset {offset:+d}")
    told = [f"positional: {place}"] if "positional" in row["functions"] else []
    told += ["rare tokens"] if "rare" in row["functions"] else []
    told.append(f"{share:.0%} of its largest weights on {place}")
    told.append(f"largest weight {row['confidence']:.0%} on average")
    return told
