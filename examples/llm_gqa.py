"""Prune a language model with grouped-query attention, without training, and see what it writes before and after.

Run: python examples/llm_gqa.py [MODEL TEXT]
MODEL is a folder or hub name, TEXT a file of what it will read: some hundred lines of it repair the model, and the loss
is of the same lines. Without them, a small Llama learns some proverbs by heart first, which takes some seconds.
"""

import copy
import sys
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, ByT5Tokenizer, LlamaConfig, LlamaForCausalLM

import headprune as hp

PROVERBS = """The early bird catches the worm. A stitch in time saves nine. Two heads are better than one.
Look before you leap. A rolling stone gathers no moss. Still waters run deep. Every cloud has a silver lining.
Actions speak louder than words. Too many cooks spoil the broth. When the cat is away, the mice will play."""


def batch(lines: list[str]) -> dict[str, Tensor]:
    made = tokenizer(lines, padding=True, truncation=True, max_length=128, return_tensors="pt")
    return {**made, "labels": made["input_ids"].masked_fill(made["attention_mask"] == 0, -100)}


def report(what: str, model: torch.nn.Module) -> None:
    start = tokenizer(texts[0][: len(texts[0]) // 2], return_tensors="pt", add_special_tokens=False)
    with torch.no_grad():
        loss = sum(float(model(**one).loss) for one in batches) / len(batches)
        words = model.generate(**start, max_new_tokens=20, do_sample=False)[0]
    text = tokenizer.decode(words, skip_special_tokens=True)
    print(f"{what:8} {len(hp.find_heads(model)):3} heads, loss {loss:.3f}, writes: {text}")


torch.manual_seed(0)
if len(sys.argv) > 2:
    model, tokenizer = AutoModelForCausalLM.from_pretrained(sys.argv[1]), AutoTokenizer.from_pretrained(sys.argv[1])
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    texts = [line for line in Path(sys.argv[2]).read_text(encoding="utf-8").splitlines() if line.strip()]
else:
    config = LlamaConfig(vocab_size=259, hidden_size=96, intermediate_size=192, num_hidden_layers=3, pad_token_id=0,
                         num_attention_heads=12, num_key_value_heads=6, bos_token_id=None, eos_token_id=1)  # fmt: skip
    model, tokenizer = LlamaForCausalLM(config), ByT5Tokenizer(extra_ids=0)  # letters are its tokens
    texts = [f"{text.strip()}." for text in PROVERBS.split(".")[:-1]]
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(200):
        model(**batch(texts)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

batches = [batch(texts[start : start + 8]) for start in range(0, len(texts), 8)]
report("whole", model.eval())
heads = hp.find_heads(model)  # print(heads) shows which heads share keys and values
scores = hp.score(model, batches, method="curvature", unit="group")
mask = hp.select(scores, heads, prune=0.5, unit="group", normalize="none")
report("pruned", hp.prune_(copy.deepcopy(model), mask))
hp.recover_(model, mask, batches)
report("repaired", hp.prune_(model, mask))
