"""A scorer of your own, registered under a name, in `score` and `select`.

Run: python examples/own_scorer.py [MODEL]
MODEL is a sentence encoder; without it, the MiniLM of the demo extra. The score of a head is how far the sentence's
vector turns without it: 1 - cosine. No labels are needed; the price is one forward pass a head and batch.
"""

import copy
import sys

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModel, AutoTokenizer

import headprune as hp
from headprune.scoring import scorers
from headprune.scoring.context import HeadSums, ScoringContext

SEEN = ["A man plays a guitar on the stage.", "Two dogs run over a field of snow.", "She reads it every morning.",
        "The train to the coast is late again.", "Prices of oil fell for a third week.", "Mix flour and warm milk.",
        "The court will hear the case in May.", "He has never seen the sea."]  # fmt: skip
UNSEEN = ["A woman is singing to a small crowd.", "The cat sleeps under the table.", "Shares rose after the report.",
          "Bake it for an hour, then let it cool."]  # fmt: skip


def sentence_vectors(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    states, real = model(**batch).last_hidden_state, batch["attention_mask"].unsqueeze(-1)
    return (states * real).sum(1) / real.sum(1)  # (batch, width)


@scorers.add("vector-shift", comparable=True)  # a number means the same in every layer
def vector_shift(job: ScoringContext) -> hp.HeadScores:
    """A job has the model in evaluation mode, its heads, and batches on its device. Larger: more worth keeping."""
    sums, everything = HeadSums(job.heads), hp.HeadMask.full(job.heads)
    with torch.no_grad():
        for batch in job.batches:
            whole = sentence_vectors(job.model, batch)
            for site in job.heads:
                shifts = []
                for head in site.heads():
                    with hp.masked(job.model, everything.without(head), heads=job.heads):
                        shifts.append(1 - F.cosine_similarity(sentence_vectors(job.model, batch), whole))
                sums.add(site.id, torch.stack(shifts, dim=1))  # (batch, heads)
    return sums.scores("vector-shift")


name = sys.argv[1] if len(sys.argv) > 1 else hp.demo_model()
model, tokenizer = AutoModel.from_pretrained(name).eval(), AutoTokenizer.from_pretrained(name)
seen, unseen = (dict(tokenizer(texts, padding=True, return_tensors="pt")) for texts in (SEEN, UNSEEN))
for method in ("vector-shift", "magnitude", "random"):
    scores = hp.score(model, [seen], method=method)
    mask = hp.select(scores, prune=0.25)
    small = hp.prune_(copy.deepcopy(model), mask)
    with torch.no_grad():
        near = F.cosine_similarity(sentence_vectors(small, unseen), sentence_vectors(model, unseen)).mean()
    print(f"{method:12} {len(hp.find_heads(small))} heads left; new sentences keep a cosine of {near:.3f}")
