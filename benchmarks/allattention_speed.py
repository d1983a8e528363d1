"""Speed of All-attention: a training step against the formula written the obvious way, and what pruning brings.

Training: 6 layers of 6 heads, width 192, 384 persistent vectors, memory and segments of 64, batch 32, float32, no
dropout: one forward and backward pass behind a full memory. The rival is the formula as a reader of the paper would
write it (einsum, all distances shifted, a mask, persistent vectors beside the text), with the same weights; their
losses are compared first. Inference: 16 layers of 8 heads, width 512, 2,048 persistent vectors (Shim et al.), memory
and segments of 192, batch 4 (that of the paper's code), with 25 and 50 % of the heads removed at random; what the MACs
predict is the ratio of multiply-accumulate operations. All in interleaved rounds with an A/A control. Writes
benchmarks/results/allattention_speed.json and prints a summary.
"""

from __future__ import annotations

import copy
import json
import math
import platform
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

import headprune as hp
from headprune.cost.macs import count_macs_of
from headprune.cost.measurement import interleaved, ratio
from headprune.files import write_text

RESULTS = Path(__file__).parent / "results" / "allattention_speed.json"
TRAINING_ROUNDS, INFERENCE_ROUNDS = 12, 8
STEP_TARGET, PRUNED_TARGET = 1.0, 0.90


class PlainAttention(nn.Module):
    """The formula the obvious way, on the weights of another attention."""

    def __init__(self, other: Any, span: int) -> None:
        super().__init__()
        self.other, self.span = other, span

    def forward(self, hidden: Tensor, source: Tensor, distances: Tensor) -> Tensor:
        a = self.other
        batch, queries, _ = hidden.shape
        keys = source.shape[1]
        q = a.q_proj(hidden).view(batch, queries, a.num_heads, a.head_dim)
        k = a.k_proj(source).view(batch, keys, a.num_heads, a.head_dim)
        v = a.v_proj(source).view(batch, keys, a.num_heads, a.head_dim)
        r = a.r_proj(distances).view(keys, a.num_heads, a.head_dim)  # of keys - 1, …, 0
        content = torch.einsum("bthd,bkhd->bhtk", q + a.u, k)
        position = torch.einsum("bthd,khd->bhtk", q + a.v, r)
        position = F.pad(position, (1, 0)).view(batch, a.num_heads, keys + 1, queries)[:, :, 1:]
        position = position.reshape(batch, a.num_heads, queries, keys)
        scores = (content + position) / math.sqrt(a.head_dim)
        i = torch.arange(queries)[:, None] + keys - queries
        j = torch.arange(keys)[None]
        scores = scores.masked_fill((j > i) | (j < i - self.span), -math.inf)
        persistent = torch.einsum("bthd,hnd->bhtn", q, a.persistent_keys)
        weights = torch.cat([scores, persistent], dim=-1).softmax(-1)
        context = torch.einsum("bhtk,bkhd->bthd", weights[..., :keys], v)
        context = context + torch.einsum(
            "bhtn,hnd->bthd", weights[..., keys:], math.sqrt(a.num_persistent) * a.persistent_values
        )
        return a.o_proj(context.reshape(batch, queries, -1))


class PlainModel(nn.Module):
    """Layers, memory and loss around it."""

    def __init__(self, other: Any) -> None:
        super().__init__()
        self.other = other
        span = other.config.memory_length
        self.attention = nn.ModuleList(PlainAttention(layer.attention, span) for layer in other.model.layers)

    def forward(self, ids: Tensor, targets: Tensor, memory: Any) -> Tensor:
        base = self.other.model
        hidden = base.dropout(base.embeddings(ids) * math.sqrt(self.other.config.hidden_size))
        keys = ids.shape[1] + len(memory)
        distances = base.dropout(base.distances.weight[:keys].flip(0))
        for layer, attention, past in zip(base.layers, self.attention, memory.layers, strict=True):
            source = layer.norm(torch.cat([past, hidden], dim=1))
            hidden = hidden + layer.dropout(attention(source[:, len(memory) :], source, distances))
        logits = self.other.lm_head(self.other.dropout(hidden))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def training() -> dict[str, Any]:
    torch.manual_seed(0)
    # The rival wants vectors of all distances, also of those that the span then masks.
    config = hp.AllAttentionConfig(
        vocab_size=27, hidden_size=192, num_hidden_layers=6, num_attention_heads=6, num_persistent=384,
        memory_length=64, position_rows=128, embedding_dropout=0.0, hidden_dropout=0.0, attention_dropout=0.0,
    )  # fmt: skip
    model = hp.AllAttentionForCausalLM(config).train()
    plain = PlainModel(model)
    ids, targets = torch.randint(0, 27, (2, 32, 64))
    memory = model(ids).past_key_values

    def ours() -> Tensor:
        loss: Tensor = model(ids, shift_labels=targets, past_key_values=memory).loss
        return loss

    def rival() -> Tensor:
        return plain(ids, targets, memory)

    gap = abs(float(ours().detach()) - float(rival().detach()))
    if gap > 1e-5:
        raise SystemExit(f"the two do not say the same: {gap}")

    def step(loss: Any) -> Any:
        def run() -> None:
            model.zero_grad()
            loss().backward()

        return run

    times = interleaved([step(rival), step(rival), step(ours)], TRAINING_ROUNDS, warmup=1)
    speedup, low, high = ratio(times[0], times[2])
    control = ratio(times[0], times[1])
    return {
        "seconds": {"obvious": min(times[0]), "ours": min(times[2])}, "speedup": speedup,
        "speedup_quartiles": [low, high], "control": control[0], "control_quartiles": control[1:],
        "rounds": TRAINING_ROUNDS, "difference_of_losses": gap, "target": STEP_TARGET, "met": speedup >= STEP_TARGET,
    }  # fmt: skip


def inference() -> dict[str, Any]:
    torch.manual_seed(0)
    whole = hp.AllAttentionForCausalLM(hp.AllAttentionConfig(vocab_size=27, memory_length=192)).eval()
    heads = hp.find_heads(whole)
    ids = torch.randint(0, 27, (4, 192))
    with torch.no_grad():
        memory = whole(ids).past_key_values
    figures = {}

    def reading(model: Any) -> Any:
        def run() -> None:
            with torch.inference_mode():
                model(ids, past_key_values=memory)

        return run

    for share in (0.25, 0.5):
        mask = hp.HeadMask.random(heads, prune=share, seed=0)
        pruned = hp.prune_(copy.deepcopy(whole), mask)
        tasks = [reading(model.requires_grad_(False)) for model in (whole, whole, pruned)]
        predicted = count_macs_of(tasks[0]) / count_macs_of(tasks[2])
        times = interleaved(tasks, INFERENCE_ROUNDS, warmup=1)
        speedup, low, high = ratio(times[0], times[2])
        control = ratio(times[0], times[1])
        figures[f"{share:.0%}"] = {
            "speedup": speedup, "speedup_quartiles": [low, high], "predicted_by_macs": predicted,
            "of_predicted": speedup / predicted, "control": control[0], "control_quartiles": control[1:],
            "rounds": INFERENCE_ROUNDS, "target": PRUNED_TARGET, "met": speedup / predicted >= PRUNED_TARGET,
        }  # fmt: skip
    return figures


def main() -> None:
    transformers.logging.set_verbosity_error()
    step, pruned = training(), inference()
    print(f"a training step is {step['speedup']:.3f} times as fast as the obvious way; A/A {step['control']:.3f}")
    for share, told in pruned.items():
        print(f"{share} of the heads removed: {told['speedup']:.3f} times as fast, {told['of_predicted']:.3f} of what "
              f"the MACs predict ({told['predicted_by_macs']:.3f}); A/A {told['control']:.3f}")  # fmt: skip
    result = {
        "benchmark": "allattention_speed",
        "machine": {
            "processor": platform.processor() or platform.machine(), "threads": torch.get_num_threads(),
            "torch": torch.__version__, "transformers": transformers.__version__,
        },
        "figures": {"training_step": step, "pruned_inference": pruned},
    }  # fmt: skip
    write_text(RESULTS, json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
