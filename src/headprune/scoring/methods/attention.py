"""`confidence` and `entropy`: what the attention maps themselves look like."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from headprune.errors import UnsupportedModelError
from headprune.heads import HeadScores, Site
from headprune.hooks import recorded_attention
from headprune.scoring.context import HeadSums, ScoringContext
from headprune.scoring.moments import example_means
from headprune.scoring.run import scorers
from headprune.types import Batch


@scorers.add("confidence", of_attention=True)
def confidence(job: ScoringContext, *, exclude_end: bool = True) -> HeadScores:
    """The mean over tokens of a head's largest attention weight: E_x mean_t max_s a_ts.

    `exclude_end` leaves out attention to the end-of-sequence token before taking the maximum (Voita et al.): heads
    that have nothing to say rest there. Padding is left out.
    Cost: one forward per batch with eager attention. Relations: a confident head has low `entropy`; needs no labels.
    Paper: Voita et al. 2019, section 4.
    """
    return _mean_over_queries(job, "confidence", _largest, exclude_end)


@scorers.add("entropy", of_attention=True)
def entropy(job: ScoringContext, *, exclude_end: bool = False) -> HeadScores:
    """The mean entropy of a head's attention, negated, so that focused heads score higher: E_x mean_t sum_s a log a.

    Cost: as `confidence`, of which it is the smooth sibling.
    """
    return _mean_over_queries(job, "entropy", _negative_entropy, exclude_end)


def _largest(maps: Tensor) -> Tensor:
    return maps.amax(-1)


def _negative_entropy(maps: Tensor) -> Tensor:
    return torch.xlogy(maps, maps).sum(-1)


def _mean_over_queries(
    job: ScoringContext, method: str, summary: Callable[[Tensor], Tensor], exclude_end: bool
) -> HeadScores:
    sums = HeadSums(job.heads)
    sites = [site for site in job.heads if site.num_heads]
    batch = None
    for batch in job.batches:
        with torch.no_grad(), recorded_attention(job.model, {site.id: site.path for site in sites}) as seen:
            job.answer(batch)
        for site in sites:
            if site.id not in seen:
                continue  # a batch of text alone does not reach the part for pictures
            maps = seen[site.id].float()  # (batch, heads, queries, keys)
            if exclude_end:
                maps = _without_end(maps, batch, site, job)
            values = summary(maps).transpose(1, 2)  # (batch, queries, heads)
            sums.add(site.id, example_means(batch, site, values, has_encoder=job.has_encoder))
    silent = [site.id for site in sites if site.id not in sums.counts]
    if silent and batch is not None:
        raise UnsupportedModelError(
            f"{silent[0]} shows no attention map: its attention function returns none even when run eagerly, or no "
            f"batch of the data reaches it. Use another score than '{method}', or other data."
        )
    return sums.scores(method, exclude_end=exclude_end)


def _without_end(maps: Tensor, batch: Batch, site: Site, job: ScoringContext) -> Tensor:
    """Attention to end-of-sequence keys set to zero, where the keys are tokens that the batch shows."""
    end = getattr(getattr(job.model, "config", None), "eos_token_id", None)
    name = "decoder_input_ids" if site.component == "decoder" and "decoder_input_ids" in batch else "input_ids"
    keys = batch.get(name)
    if end is None or not isinstance(keys, Tensor) or keys.shape != (maps.shape[0], maps.shape[3]):
        return maps
    ends = torch.tensor(end if isinstance(end, list | tuple) else [end], device=keys.device)
    return maps.masked_fill(torch.isin(keys, ends)[:, None, None, :], 0.0)
