"""`score`: any scorer on any model and data."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import torch
from torch import nn

from headprune.errors import DataError, UnsupportedModelError
from headprune.heads import HeadMap, HeadMask, HeadScores
from headprune.heads.mask import Unit
from headprune.masking import masked
from headprune.registry import NamedItems, check_options
from headprune.scoring.context import ExampleLoss, LossFunction, ScoringContext, batches_of, equations_of, evaluation
from headprune.structure.find import find_heads
from headprune.structure.run import unwrapped


def score(
    model: nn.Module,
    data: object = (),
    *,
    method: str = "sensitivity",
    loss: Literal["mean", "sum"] | LossFunction = "mean",
    heads: HeadMap | None = None,
    mask: HeadMask | None = None,
    collator: object = None,
    batch_size: int = 16,
    name: str = "",
    seed: int = 0,
    **options: object,
) -> HeadScores:
    """What every head is worth, by `method`; larger is more worth keeping.

    `data` is a DataLoader, a list of batches, or a dataset of examples (with a `collator`); batches are tables of
    model inputs with `labels`. `loss` is how an example's loss is taken: "mean" or "sum" over its target tokens, or a
    function `(outputs, batch) -> (batch,)`. With `mask`, the model is scored with only these heads on. `name` says
    what the data is, for the record. Further options are the method's own. Scores of parts of the data add up:
    `score(model, first) + score(model, second)`.

    Example:
        >>> scores = hp.score(model, batches, method="sensitivity", name="dev")
        >>> len(scores.scores["encoder.0"])
        4
    """
    model = unwrapped(model)
    scorer = scorers[method]
    found = heads if heads is not None else find_heads(model)
    if scorer.of_attention and found.neurons:
        raise UnsupportedModelError(
            f"'{method}' looks at attention, which neurons do not have. Score heads alone, or neurons by another one "
            "(sensitivity, fisher, output-norm, curvature …)."
        )
    scorer.check_options(method, options)
    if not len(found):
        raise UnsupportedModelError("This model has no heads left: there is nothing to score.")
    if not scorer.data_free and any(parameter.is_meta for parameter in model.parameters()):
        raise UnsupportedModelError("The model is on the meta device: it has no weights to run. Load them first.")
    device = next(model.parameters()).device
    batches = batches_of(data, device, collator=collator, batch_size=batch_size)
    job = ScoringContext(model=model, heads=found, batches=batches, loss=ExampleLoss(loss), seed=seed)
    masking = masked(model, mask, heads=found) if mask is not None else nullcontext()
    solving = equations_of(f"The score '{method}'")
    with torch.inference_mode(False), evaluation(model), masking, solving:  # gradients are wanted in any case
        try:
            scores = scorer(job, **options)
        except IndexError as error:
            raise DataError(_beyond(model, error)) from error
    how = {} if loss == "mean" else {"loss": loss if isinstance(loss, str) else "own"}
    return dataclasses.replace(scores, data=name, options={**scores.options, **how})


def _beyond(model: nn.Module, error: IndexError) -> str:
    """A label or a token that the model does not have: Python says so in riddles."""
    config = getattr(model, "config", None)
    known = [f"{getattr(config, name)} {what}" for name, what in (("num_labels", "classes"), ("vocab_size", "tokens"))
             if getattr(config, name, None)]  # fmt: skip
    return (
        f"A batch has a number that the model does not know ({str(error).rstrip('.')}). It has {' and '.join(known)}, "
        "numbered from 0: look at the labels, and whether the tokenizer is the model's own."
    )


Function = TypeVar("Function", bound=Callable[..., HeadScores])
Rearrangement = Callable[[ScoringContext, HeadMask, Unit], HeadMask]


@dataclass(frozen=True)
class Scorer:
    """A function from a ScoringContext and options of its own to scores, and what it says of itself."""

    function: Callable[..., HeadScores]
    comparable: bool = False  # its numbers mean the same in every site, so that sites need no normalisation
    data_free: bool = False  # looks at no data
    of_attention: bool = False  # looks at attention itself: not for neurons
    needs_all: bool = False  # its answers on parts of the data do not add up to that on all of it
    rearranges: Rearrangement | None = None  # chooses anew, at the number of units that a mask keeps in each site

    def __call__(self, job: object, **options: object) -> HeadScores:
        scores = self.function(job, **options)
        return replace(scores, comparable=scores.comparable or self.comparable)

    def check_options(self, name: str, options: Iterable[str]) -> None:
        check_options(f"The score '{name}'", self.function, options)


class Scorers(NamedItems[Scorer]):
    """Scorers by the name that users type. A package offers its own in the group `headprune.scorers`."""

    def add(
        self,
        name: str,
        *,
        comparable: bool = False,
        data_free: bool = False,
        of_attention: bool = False,
        needs_all: bool = False,
        rearranges: Rearrangement | None = None,
    ) -> Callable[[Function], Function]:
        """Register a function: `@scorers.add("mine", comparable=True)`. What can be said is told in `Scorer`."""

        def register(function: Function) -> Function:
            self._items[name] = Scorer(function, comparable, data_free, of_attention, needs_all, rearranges)
            return function

        return register

    def put(self, name: str, item: Any) -> None:
        self._items[name] = item if isinstance(item, Scorer) else Scorer(item)


scorers = Scorers("scorer", group="headprune.scorers")


def unit_options(method: str, unit: str) -> dict[str, Any]:
    """What a scorer must be told so that heads that go together are scored together; most only add up their heads."""
    return {"unit": unit} if "unit" in inspect.signature(scorers[method].function).parameters else {}
