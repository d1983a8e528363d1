"""Prune a translation model: encoder, decoder and cross-attention each lose a share of their heads.

Run: python examples/translation.py
A small Marian model learns a toy language pair first. With your own, from_pretrained replaces tokenizer and model.
"""

import itertools
import random

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import MarianConfig, MarianMTModel, PreTrainedTokenizerFast, set_seed

import headprune as hp

NOUNS = {"dog": "hund", "cat": "kater", "man": "mann", "boy": "junge", "ball": "ball", "car": "wagen"}
VERBS, KINDS = {"sees": "sieht", "has": "hat", "takes": "nimmt"}, {"red": "roten", "old": "alten", "new": "neuen"}
pairs = [(f"now the {a} {v} the {k} {b}", f"jetzt {VERBS[v]} der {NOUNS[a]} den {KINDS[k]} {NOUNS[b]}")
         for a, v, k, b in itertools.product(NOUNS, VERBS, KINDS, NOUNS)]  # fmt: skip
random.Random(0).shuffle(pairs)
train, test = pairs[:250], pairs[250:]
words = ["<pad>", "</s>", *sorted({word for pair in pairs for text in pair for word in text.split()})]
raw = Tokenizer(models.WordLevel({word: place for place, word in enumerate(words)}, unk_token="<pad>"))
raw.pre_tokenizer = pre_tokenizers.Whitespace()
raw.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<pad>", eos_token="</s>")
set_seed(0)
model = MarianMTModel(MarianConfig(
    vocab_size=len(words), d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=8, dropout=0.0,
    decoder_attention_heads=8, encoder_ffn_dim=128, decoder_ffn_dim=128, scale_embedding=True, pad_token_id=0,
    eos_token_id=1, decoder_start_token_id=0, forced_eos_token_id=None))  # fmt: skip


def batch(some: list[tuple[str, str]]) -> dict[str, torch.Tensor]:
    made = (tokenizer([pair[side] for pair in some], return_tensors="pt")["input_ids"] for side in (0, 1))
    return dict(zip(("input_ids", "labels"), made, strict=True))  # all are as long: nothing is padded


def learn(steps: int) -> None:
    optimizer = torch.optim.AdamW(model.train().parameters(), lr=2e-3)
    for _ in range(steps):
        model(**batch(random.sample(train, 32))).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def report(what: str) -> None:
    texts = tokenizer.batch_decode(model.eval().generate(batch(test)["input_ids"], max_new_tokens=9), True)
    right = [text == target for text, (_, target) in zip(texts, test, strict=True)]
    heads = ", ".join(f"{site.id} {site.num_heads}" for site in hp.find_heads(model))
    print(f"{what}: {sum(right) / len(right):.0%} of the new sentences right; heads: {heads}")


learn(260)
report("trained")
scores = hp.score(model, [batch(train)])
hp.prune_(model, hp.select(scores, prune=0.75, per="component", at_least=1))  # per: a share of each kind
report("pruned")
learn(40)
report("trained again")
