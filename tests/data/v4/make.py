"""Makes the checkpoints beside it, with transformers 4.57.1: tiny models that v4 itself has pruned and saved, and what
they answer. Run it in an environment of its own: python make.py"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel, __version__

IDS = torch.tensor([[5, 6, 7, 8, 9, 10, 11], [4, 3, 12, 13, 14, 2, 1]])
BERT = BertConfig(vocab_size=23, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=16,
                  max_position_embeddings=16)  # fmt: skip
GPT2 = GPT2Config(vocab_size=23, n_embd=16, n_layer=2, n_head=4, n_positions=16)


def make(name: str, model: torch.nn.Module, pruned: dict[int, list[int]]) -> None:
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    model.eval().prune_heads(pruned)
    folder = Path(__file__).parent / name
    model.save_pretrained(folder)
    with torch.no_grad():
        logits = model(input_ids=IDS).logits
    told = {"made_with": f"transformers {__version__}", "pruned": pruned, "inputs": {"input_ids": IDS.tolist()},
            "logits": logits.tolist()}  # fmt: skip
    (folder / "answers.json").write_text(json.dumps(told))


if __name__ == "__main__":
    torch.manual_seed(0)
    make("bert", BertForSequenceClassification(BERT), {0: [1, 2], 1: [3]})
    make("gpt2", GPT2LMHeadModel(GPT2), {0: [0], 1: [1, 3]})
