"""Tiny language models with real tokenizers, as folders."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from headprune.checkpoint.exports.gguf.comparison import SPELLINGS
from tests.families.tiny import tiny_model

CHAT = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ["<unk>", "<|im_start|>", "<|im_end|>"]
SIZE = 420


def byte_tokenizer(*steps: pre_tokenizers.PreTokenizer, normalizer=None, template=CHAT) -> PreTrainedTokenizerFast:
    """BPE over bytes, as SmolLM2, Qwen2 and Llama 3 have it."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.Sequence([*steps]) if len(steps) > 1 else steps[0]
    made.decoder = decoders.ByteLevel()
    if normalizer is not None:
        made.normalizer = normalizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(SPELLINGS, trainers.BpeTrainer(vocab_size=SIZE - 2, special_tokens=SPECIAL,
                             initial_alphabet=alphabet, show_progress=False))  # fmt: skip
    return wrapped(made, template)


def piece_tokenizer() -> PreTrainedTokenizerFast:
    """BPE over characters with bytes for the rest, and a beginning, as Llama 2 and Mistral have it."""
    made = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    bytes_ = [f"<0x{value:02X}>" for value in range(256)]
    made.train_from_iterator(SPELLINGS[:1], trainers.BpeTrainer(vocab_size=SIZE - 2, show_progress=False,
                             special_tokens=["<unk>", "<s>", "</s>", *bytes_]))  # fmt: skip
    content = made.to_str()
    import json

    plain = json.loads(content)
    plain["added_tokens"] = [one for one in plain["added_tokens"] if not one["content"].startswith("<0x")]
    made = Tokenizer.from_str(json.dumps(plain))
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def wrapped(made: Tokenizer, template: str | None = CHAT) -> PreTrainedTokenizerFast:
    found = PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<|im_start|>", eos_token="<|im_end|>", unk_token="<unk>"
    )
    found.chat_template = template
    return found


def smollm_tokenizer() -> PreTrainedTokenizerFast:
    """Digits one by one, then GPT-2's pattern."""
    return byte_tokenizer(
        pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    )


def tiny_llm(family: str, folder: Path, tokenizer: PreTrainedTokenizerFast | None = None, **more):
    """A random model of a family with a tokenizer beside it, loaded from its folder."""
    settings = {"vocab_size": SIZE, "num_hidden_layers": 4, "max_position_embeddings": 256, **more}
    tiny_model(family, **settings).save_pretrained(folder)
    (tokenizer or smollm_tokenizer()).save_pretrained(folder)
    return AutoModelForCausalLM.from_pretrained(folder).eval()
