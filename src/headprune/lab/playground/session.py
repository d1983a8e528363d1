"""A model that people play with: which heads are left, what it answers, how fast it is, and saving it."""

from __future__ import annotations

import copy
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from headprune.budgets.budget import Costs, Counted, Selection
from headprune.checkpoint.out_folder import OutFolder, check_writable, new_model_folder
from headprune.cost.macs import count_macs, count_parameters
from headprune.cost.measurement import sized_example
from headprune.errors import BudgetError, CheckpointError, DataError, MaskError
from headprune.heads import HeadId, HeadMap, HeadMask, HeadScores, Site
from headprune.heads.mask import Unit, head_units
from headprune.heads.scores import select
from headprune.lab.playground.answers import answers_kind, class_names, said_to_each
from headprune.lab.playground.attention import attention_of, packed, tokens_of
from headprune.lab.playground.content import Content, Measured, Point, Sentence, Worth, kept_of, rows_of
from headprune.masking import masked
from headprune.scoring.context import evaluation
from headprune.structure.run import to_model
from headprune.surgery.prune import prune_, temporarily_pruned
from headprune.typed_json import to_plain
from headprune.types import Tokenizer

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")  # of a folder below --out
TOKENS = 64  # of a sentence, longer ones are cut
SHARES = tuple(step / 20 for step in range(19, 3, -1))  # of the MACs, for the slider
LENGTH = 128  # of the forward pass whose MACs are counted
TEXT = "the film is a quiet wonder , and the ending surprised me ."


@dataclass(kw_only=True)
class Session:
    """Everything that a request needs. Nothing is changed for good but what `save` writes."""

    model: nn.Module
    name: str
    tokenizer: Tokenizer
    scores: HeadScores
    heads: HeadMap  # with neurons, where the scores know them
    out: Path
    text: str = TEXT
    tell: Callable[[str], None] = lambda what: None
    unit: Unit = field(init=False)
    budgets: list[tuple[float, HeadMask]] = field(init=False)
    costs: tuple[Costs, Costs] = field(init=False)  # parameters and MACs by the units that a site keeps

    def __post_init__(self) -> None:
        grouped = any(site.num_kv_heads < site.num_heads for site in self.heads.attention)
        self.unit = "group" if grouped else "head"
        self.units = head_units(self.heads.attention, self.unit)
        self.full = HeadMask.full(self.heads)
        self.costs = self._counted()
        self.budgets = list(self._budgets())

    def _selection(self) -> Selection:
        return Selection(scores=self.scores, heads=self.heads, model=self.model, unit=self.unit, length=LENGTH)

    def _counted(self) -> tuple[Costs, Costs]:
        """What each site costs with fewer units, so that no click has to count."""
        self.tell("counting what heads cost")
        inputs = to_model(self.model, sized_example(self.model, 1, LENGTH))
        parameters = Counted(
            "parameters", self.model, self.heads, lambda model, heads: count_parameters(model, heads).total
        )
        macs = Counted("macs", self.model, self.heads, lambda model, heads: count_macs(model, heads, inputs).total)
        selection = self._selection()
        return selection.costs(parameters), selection.costs(macs)

    def _budgets(self) -> Iterator[tuple[float, HeadMask]]:
        """Masks for a slider over MACs, as far down as scores reach."""
        selection = self._selection()
        for share in SHARES:
            self.tell(f"choosing what stays of {share:.0%} of the MACs")
            try:
                yield share, selection.within(self.costs[1], share)
            except BudgetError:
                return

    def content(self) -> dict[str, Any]:
        """What the page begins with."""
        worth = Worth(name=self.scores.method, values={s: tuple(v) for s, v in self.scores.normalized().items()
                                                       if s in self.heads.attention})  # fmt: skip
        found = Content(
            title=f"Play with {Path(self.name).name}",
            about="Take heads away and see what the model answers, looks at, and costs. Nothing leaves this machine; "
            "heads are masked or removed as they are: `headprune shrink` also repairs what stays.",
            sites=rows_of(self.heads), worth=worth,
        )  # fmt: skip
        ways = [{"name": f"heads, least worth first ({self.scores.method})", "steps": len(self.units)}]
        if self.budgets:
            what = "heads and neurons" if self.heads.neurons else "heads"
            ways.append({"name": f"budget of MACs ({what})", "steps": len(self.budgets)})
        live = {"text": self.text, "kept": kept_of(self.heads, self.full), "ways": ways, "out": str(self.out)}
        return {**found.to_dict(), "live": live}

    def ask(self, asked: Mapping[str, object]) -> dict[str, Any]:
        """What the whole model and the one with fewer heads answer. Three forward passes of the sentence: the whole
        model and the pruned one, timed, and the masked one, whose attention is kept."""
        mask, label = self._mask(asked)
        ids, inputs = self._inputs(asked.get("text"))
        with evaluation(self.model), torch.no_grad():
            whole, slow = self._timed(inputs)
            with temporarily_pruned(self.model, mask):
                now, fast = self._timed(inputs)
            with masked(self.model, mask, heads=self.heads), attention_of(self.model, self.heads) as maps:
                self.model(**inputs)
        sentence = Sentence(tokens=tokens_of(self.tokenizer, ids), maps=packed(maps, 0, len(ids)))
        speed = Measured(speedup=slow / fast)
        before = self._point("the whole model", self.full)
        return {
            "whole": to_plain(before), "now": {**to_plain(self._point(label, mask)), "speed": to_plain(speed)},
            "sentence": to_plain(sentence), "answers": self._answers(inputs, whole, now), "label": label,
            "told": f"One forward pass: {1e3 * slow:.1f} ms with all heads, {1e3 * fast:.1f} ms now. Single passes "
            "wander; `headprune shrink` measures many, with a control.",
        }  # fmt: skip

    def save(self, asked: Mapping[str, object]) -> dict[str, Any]:
        """Prune a copy and put it into a folder below --out."""
        name = str(asked.get("name", ""))
        if not NAME.fullmatch(name):
            raise CheckpointError(
                f"'{name[:80]}' is no name for a folder. Expected letters, digits, dots, dashes and underscores."
            )
        mask, _ = self._mask({"kept": asked.get("kept")})
        place = self.out / name
        if place.exists() or place.is_symlink():
            raise CheckpointError(f"'{place}' is already there. Choose another name.")
        check_writable(place, self.name)
        small = prune_(copy.deepcopy(self.model), mask, about={"by": "hand, in headprune play"})
        with new_model_folder(place, Path(self.name)) as new:
            small.save_pretrained(new)  # type: ignore[operator]
            OutFolder(place, "play", key="").note(new)
        heads = sum(len(mask.kept(site.id)) for site in self.heads.attention)
        return {"told": f"Saved to {place}: {heads} of {len(self.heads.attention)} heads. Load it as any model, after "
                        "`import headprune`.", "path": str(place)}  # fmt: skip

    def _mask(self, asked: Mapping[str, object]) -> tuple[HeadMask, str]:
        """What stays: what the slider says, or what the page shows, with one head (and its group) the other way."""
        if "way" in asked:
            way, step = _number(asked["way"]), _number(asked.get("step"))
            if way == 0 and step <= len(self.units):
                mask = select(self.scores, self.heads.attention, prune=step, unit=self.unit, normalize=None)
                gone = len(self.heads.attention) - len(mask)
                return mask.filled(self.heads), f"{gone} of {len(self.heads.attention)} heads removed"
            if way == 1 and step <= len(self.budgets):
                share, mask = self.budgets[step - 1] if step else (1.0, self.full)
                return mask, f"{share:.0%} of the MACs left" if step else "the whole model"
            raise MaskError(f"The slider has no way {way} with step {step}.")
        mask = self._read(asked["kept"]) if "kept" in asked else self.full
        if "toggle" in asked:
            head = HeadId.parse(str(asked["toggle"]))
            unit = next((one for one in self.units if head in one), None)
            if unit is None:
                raise MaskError(f"There is no head '{head}' to take away or put back.")
            kept = {site: set(found) for site, found in mask.to_dict().items()}
            for one in unit:
                (kept[one.site].discard if head in mask else kept[one.site].add)(one.index)
            mask = HeadMask.from_dict(self.heads, {site: sorted(found) for site, found in kept.items()})
        left = sum(len(mask.kept(site.id)) for site in self.heads.attention)
        total = len(self.heads.attention)
        return mask, f"{total - left} of {total} heads removed" if left < total else "all heads are there"

    def _read(self, kept: object) -> HeadMask:
        """A mask as the page writes it. There, neurons are only counted: they are those of the budget with as many."""
        if not isinstance(kept, Mapping):
            raise MaskError(f"Found {type(kept).__name__}; expected what is kept of each site.")
        lists: dict[str, list[int]] = {}
        for site in self.heads:
            marks = kept.get(site.id)
            if not isinstance(marks, str):
                raise MaskError(f"Nothing is said of {site.id}.")
            if site.is_neurons:
                found = next((one for _, one in self.budgets if str(len(one.kept(site.id))) == marks), self.full)
                lists[site.id] = list(found.kept(site.id))
            else:
                lists[site.id] = [head for head in site.kept if marks[head : head + 1] == "1"]
        return HeadMask.from_dict(self.heads, lists)

    def _inputs(self, text: object) -> tuple[list[int], dict[str, Any]]:
        if not isinstance(text, str) or not text.strip():
            raise DataError("There is no sentence. Type one.")
        inputs = self.tokenizer(text, return_tensors="pt", truncation=True, max_length=TOKENS)
        device = next(self.model.parameters()).device
        known = {name: value.to(device) for name, value in inputs.items()}
        return known["input_ids"][0].tolist(), known

    def _timed(self, inputs: Mapping[str, object]) -> tuple[Any, float]:
        begun = time.perf_counter()
        outputs = self.model(**inputs)
        return outputs, time.perf_counter() - begun

    def _size(self, mask: HeadMask) -> tuple[int, int]:
        """Parameters and MACs that a mask leaves: straight lines between what was counted."""
        left = {
            site.id: len(mask.kept(site.id)) * _units(site, self.unit) // max(1, site.num_heads) for site in self.heads
        }
        sums = (costs.rest + sum(costs.sites[site][count] for site, count in left.items()) for costs in self.costs)
        parameters, macs = (round(value) for value in sums)
        return parameters, macs

    def _point(self, label: str, mask: HeadMask) -> Point:
        size = self._size(mask)
        left = sum(len(mask.kept(site.id)) for site in self.heads.attention)
        neurons = sum(len(mask.kept(site.id)) for site in self.heads.neurons)
        return Point(
            label=label, heads=left, neurons=neurons, parameters=size[0], macs=size[1], kept=kept_of(self.heads, mask)
        )

    def _answers(self, inputs: Mapping[str, Any], whole: Any, now: Any) -> list[dict[str, Any]]:
        kind = answers_kind(whole, inputs, self.model.config)
        names = ("with all heads", "with these heads")
        if kind == "words":
            return [
                {"name": f"next word {name}", "shares": said_to_each(kind, one, inputs, self.tokenizer)[0].words}
                for name, one in zip(names, (whole, now), strict=True)
            ]
        if kind != "classes":
            return []
        labels = class_names(self.model.config, whole.logits.shape[1])
        return [
            {"name": name, "shares": [[label, float(share)] for label, share in
                                      zip(labels, one.logits[0].float().softmax(-1), strict=True)]}
            for name, one in zip(names, (whole, now), strict=True)
        ]  # fmt: skip


def _units(site: Site, unit: Unit) -> int:
    """How many units a site has with all that is there."""
    return site.num_heads if unit == "head" or site.is_neurons else len(site.groups)


def _number(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise MaskError(f"Found {value!r}; expected a whole number.")
    return value
