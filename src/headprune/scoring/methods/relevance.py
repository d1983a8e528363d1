"""`relevance`: how much of the answer passes through a head, by layer-wise relevance propagation."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from headprune.errors import DataError, UnsupportedModelError
from headprune.heads import HeadScores
from headprune.hooks import captured_inputs, relevance_rules
from headprune.scoring.context import IGNORED, HeadSums, ScoringContext, model_inputs, single_examples
from headprune.scoring.run import scorers
from headprune.types import Batch

ALLOWED_GAP = 0.01  # of the relevance that may get lost between the answer and the inputs


@scorers.add("relevance", of_attention=True)
def relevance(job: ScoringContext, *, alpha: float = 0.5) -> HeadScores:
    """A head's share of the relevance that passes through its site, from the likeliest class or token of each answer.

    The alpha-beta rule: `alpha` of the relevance follows positive contributions, the rest negative ones (0.5 in Voita
    et al.'s later code). Each example's shares of a site sum to 1. Attention weights count as constants.
    Cost: one forward and one backward per example with eager attention. Relations: asks what the answer is made of,
    where `sensitivity` asks what the loss would feel; needs no labels except an encoder-decoder's.
    Refused if more than 1 % of the relevance is lost on its way to the inputs.
    Paper: Voita et al. 2019, section 4 (method of Ding et al. 2017).
    """
    if not 0 <= alpha <= 1:
        raise DataError(f"alpha is {alpha}; expected a share from 0 to 1.")
    sums = HeadSums(job.heads)
    sites = [site for site in job.heads if site.num_heads]
    modules = {site.id: job.model.get_submodule(site.output) for site in sites}
    for batch in job.batches:
        for example in single_examples(batch):
            flows = _flows(job, example, modules, alpha)
            for site in sites:
                by_head = flows[site.id].unflatten(-1, (site.num_heads, -1)).sum(-1)  # (…, heads)
                totals = by_head.flatten(0, -2).sum(0)
                sums.add(site.id, (totals / totals.sum().clamp_min(1e-12))[None])
    return sums.scores("relevance", alpha=alpha)


def _flows(job: ScoringContext, example: Batch, modules: Mapping[str, nn.Module], alpha: float) -> dict[str, Tensor]:
    """The relevance of every site's context, (batch, positions, heads * width)."""
    inputs = {
        name: value.detach().clone().requires_grad_() if _is_signal(value) else value
        for name, value in model_inputs(example).items()
    }
    with relevance_rules(job.model, alpha=alpha) as embedded, captured_inputs(job.model, modules) as contexts:
        outputs = job.model(**inputs)
    logits = getattr(outputs, "logits", None)
    if logits is None:
        raise UnsupportedModelError("Relevance starts from logits, and this model has none. Load it with a head.")
    start = _start(logits, example)
    ends = [*embedded, *(value for value in inputs.values() if _is_signal(value))]
    wanted = [contexts[name][-1] for name in modules]
    flows = torch.autograd.grad(logits, [*wanted, *ends], start, allow_unused=True, materialize_grads=True)
    arrived = sum(float(flow.sum()) for flow in flows[len(wanted) :])
    if abs(arrived - 1.0) > ALLOWED_GAP:
        raise UnsupportedModelError(
            f"Of the relevance of an answer, {arrived:.3f} arrived at the inputs instead of 1: this model computes "
            "in a way that the rules of relevance do not cover. Use another score."
        )
    return dict(zip(modules, flows, strict=False))


def _is_signal(value: object) -> bool:
    """Images and sounds, which are not embedded from a table."""
    return isinstance(value, Tensor) and value.is_floating_point() and value.dim() > 2


def _start(logits: Tensor, example: Batch) -> Tensor:
    """1 in all: on the likeliest class, or shared by the likeliest token of every real position."""
    start = torch.zeros_like(logits)
    start.scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)
    if logits.dim() > 2:
        for name in ("labels", "decoder_attention_mask", "attention_mask"):
            mask = example.get(name)
            if isinstance(mask, Tensor) and mask.shape == logits.shape[:-1]:
                real = mask != (IGNORED if name == "labels" else 0)
                start = start * real.unsqueeze(-1)
                break
    return start / start.sum().clamp_min(1.0)
