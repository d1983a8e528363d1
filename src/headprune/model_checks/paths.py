"""Checks of what one example does not show: other inputs, other lengths, and what looking leaves behind."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import torch
from torch import nn

from headprune.cost.measurement import measure, sized_example
from headprune.errors import HeadpruneError, VerificationError
from headprune.model_checks.checks import CheckedModel, NotApplicableError, add_check, check_same, has_nan
from headprune.recovery.recover import repaired
from headprune.scoring import score
from headprune.scoring.context import ExampleLoss, ScoringContext
from headprune.structure.dummy_inputs import BATCH
from headprune.structure.find import examined
from headprune.structure.optional_inputs import fullest, optional_inputs
from headprune.structure.run import ModelState, difference
from headprune.surgery.plan import plan
from headprune.surgery.prune import temporarily_pruned
from headprune.surgery.remove import double_precision
from headprune.types import Batch

SHORT, LONG = 3, 48  # tokens


@add_check("every path")
def _every_path(subject: CheckedModel) -> None:
    """Removed = masked and saved = loaded, with every optional input that can be made, on short and on long texts."""
    models = subject.compared or [subject.pruned(subject.one_fewer)]
    compared = 0
    for what, batch in _batches(subject):
        try:
            expected = subject.masked_answer(subject.one_fewer, batch)
        except Exception:  # the model itself does not take such a batch
            continue
        if has_nan(expected):
            continue
        compared += 1
        for kind, model in zip(("pruned", "saved and loaded"), models, strict=False):
            if not difference(subject.answer(model, batch), expected).is_small:
                _check_in_double(subject, model, batch, f"{kind} and masked, {what}")
    if not compared:
        raise NotApplicableError


def _check_in_double(subject: CheckedModel, model: nn.Module, batch: Batch, what: str) -> None:
    """The same without rounding, which on other inputs may be more than equal models should differ by."""
    with double_precision(model), double_precision(subject.model):
        check_same(subject.answer(model, batch), subject.masked_answer(subject.one_fewer, batch), what)


def _batches(subject: CheckedModel) -> Iterator[tuple[str, Batch]]:
    """Batches other than the example, and what is other in them."""
    model, example = subject.model, subject.example
    for more in optional_inputs(model, example):
        yield f"with {', '.join(more)}", {**example, **more}
    if "input_ids" not in example:
        return
    for length in (SHORT, LONG):
        try:
            batch = sized_example(model, BATCH, length)
        except HeadpruneError:
            continue
        yield f"on texts of {length} tokens", batch
        full = fullest(model, batch)
        if full.keys() != batch.keys():
            yield f"on texts of {length} tokens with {', '.join(full.keys() - batch.keys())}", full


@add_check("no trace")
def _no_trace(subject: CheckedModel) -> None:
    """Looking at a model, masking, scoring, planning, pruning and undoing it, measuring and repairing it for a while
    leave every attribute, buffer, weight, flag, and the random state as they were."""
    model, before = subject.model, subject.answer(subject.model)
    model.train()  # so that a mode that is not put back shows
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    try:
        state, others = ModelState(model), _others(model)
        for name, call in _calls(subject).items():
            with contextlib.suppress(Exception):  # also what is refused, or stumbles, must leave nothing
                call()
            changed = state.changes() + [what for what, value in _others(model).items() if value != others[what]]
            if changed:
                raise VerificationError(f"{name} leaves {changed[0]} changed ({len(changed)} in all)")
    finally:
        model.eval()
    after = model.state_dict()
    lost = [n for n, w in weights.items() if n not in after or not bool(after[n].isclose(w, 0, 0, True).all())]
    if lost or len(after) != len(weights):
        raise VerificationError(f"weights are changed: {lost[:3]}")
    check_same(subject.answer(model), before, "the answers before and after", exactly=True)


def _others(model: nn.Module) -> dict[str, Any]:
    """What is no attribute of a module: flags of weights, and random states."""
    return {
        "what is trained": [(parameter.requires_grad, parameter.grad is None) for parameter in model.parameters()],
        "torch's random state": torch.get_rng_state().tolist(),
        "numpy's random state": [*map(str, numpy.random.get_state(legacy=True))],
        "Python's random state": random.getstate(),
    }


def _calls(subject: CheckedModel) -> dict[str, Callable[[], object]]:
    model, mask, heads, example = subject.model, subject.one_fewer, subject.heads, subject.example
    context = ScoringContext(model=model, heads=heads, batches=[example], loss=ExampleLoss("mean"))

    def prune_and_undo() -> None:
        with temporarily_pruned(model, mask, example=example):
            subject.answer(model)

    def repair_and_undo() -> None:
        with repaired(context, mask, "bias"):
            subject.answer(model)

    return {
        "find_heads": lambda: examined(model, example, neurons=True),
        "masked": lambda: subject.masked_answer(mask),
        "score": lambda: score(model, [example], method="output-norm", heads=heads),
        "score by gradients": lambda: score(model, [example], method="sensitivity", heads=heads, loss=_squares),
        "plan": lambda: plan(model, mask, example=example),
        "prune_ and undo": prune_and_undo,
        "measure": lambda: measure(model, example=example, repeats=1, warmup=0),
        "recover_ and undo": repair_and_undo,
    }


def _squares(outputs: Any, batch: Batch) -> torch.Tensor:
    values = [value for value in outputs.values() if isinstance(value, torch.Tensor) and value.requires_grad]
    return values[0].float().flatten(1).square().mean(1)  # (batch,)
