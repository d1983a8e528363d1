"""Whether llama.cpp, reading a GGUF file, says what PyTorch says: token ids, log-probabilities, text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headprune.checkpoint.exports.gguf.graph import Decoder
from headprune.checkpoint.exports.gguf.runtime import LlamaCpp
from headprune.checkpoint.exports.registry import Checked
from headprune.errors import VerificationError

LARGEST_GAP = 1e-3  # between log-probabilities in float32, with nothing rounded
ORDERS = 3.0  # times the gap between two orders of the same sums in PyTorch, where float32 itself is less sure
UNSURE = 0.05  # but never more than that
ROUGHEST = 2.0  # times the perplexity: what 4 bits cost stays below it, another model does not
POSITIONS = 4  # places of the text at which the whole distribution is compared
LENGTH, GENERATED = 96, 12
SMALLEST = -60.0  # below it, float32 has no probabilities any more
TEXT = """\
When the train left the valley, the rain had stopped and the light came back over the fields. Nobody in the carriage \
spoke. A woman by the window was reading a letter for the second time; an old man counted the stations on his fingers, \
as he had done every week since the spring of 1987. "It is later than it was," he said at last, to no one in \
particular, and a child laughed. In the city the streets were full: people went home from work, shops were closing, \
and somewhere a radio played the news of the day, which was neither good nor bad.
"""
SPELLINGS = [
    TEXT,
    "def mean(values):\n    return sum(values) / len(values)  # 3.14159, 2026-11-05\n\n\tif x != 0x1F:\t pass\n",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. ¿Qué tal? Français, naïve, Ελληνικά, русский.",
    "日本語のテキスト、中文文本，한국어 문장. हिन्दी العربية עברית 🙂👩‍👩‍👧 ½ € ½x — “quotes” … \u00a0end",
    "  leading spaces,   many    spaces,\n\n\nlines\r\nand 1234567890 numbers, DON'T, it's, we'll",
    "a",
]  # fmt: skip
MESSAGES = [
    {"role": "system", "content": "You are brief."},
    {"role": "user", "content": "Name three colours."},
    {"role": "assistant", "content": "Red, green, blue."},
    {"role": "user", "content": "Und auf Deutsch? 🙂"},
]


@dataclass(frozen=True)
class Exact:
    """A model in float32: itself, or, if it computes in 16 bits, the same graph with its weights."""

    model: nn.Module
    decoder: Decoder

    def log_probs(self, tokens: Sequence[int], *, of_graph: bool = False) -> Tensor:
        """After every token of a text, (length, vocabulary)."""
        parameter = next(self.model.parameters())
        ids = torch.tensor(tokens, device=parameter.device)
        with torch.no_grad():
            if of_graph or parameter.dtype != torch.float32:
                logits = self.decoder.logits(ids)
            else:
                logits = self.model(input_ids=ids[None], use_cache=False).logits[0]
        return logits.log_softmax(-1).cpu()

    def own_gap(self, tokens: Sequence[int]) -> float:
        """By how much PyTorch differs from itself where it adds in another order."""
        return float((self.log_probs(tokens, of_graph=True) - self.log_probs(tokens)).abs().max())

    def continued(self, tokens: Sequence[int], count: int) -> list[tuple[int, float]]:
        """Greedy tokens until an end, and by how much each was ahead of the next."""
        ids, found = list(tokens), []
        ends = getattr(getattr(self.model, "generation_config", None), "eos_token_id", None)
        stops = {ends} if isinstance(ends, int) else set(ends or ())
        for _ in range(count):
            best = self.log_probs(ids)[-1].topk(2)
            ids.append(int(best.indices[0]))
            if ids[-1] in stops:
                break
            found.append((ids[-1], float(best.values[0] - best.values[1])))
        return found


@dataclass(frozen=True)
class Figures:
    """What a file says, against the model."""

    gap: float  # between log-probabilities
    perplexity: float
    model_perplexity: float
    tokens: int
    generated: int  # tokens of a greedy continuation, until the first that differs
    of: int


def compare_words(file: LlamaCpp, tokenizer: Any, texts: Sequence[str]) -> int:
    """Token ids of plain, Unicode and chat text; how many were compared."""
    count = 0
    for text in [*SPELLINGS, *texts]:
        count += _same_ids(file.tokens(text), tokenizer(text)["input_ids"], text)
    if getattr(tokenizer, "chat_template", None):
        for messages in (MESSAGES, MESSAGES[1:2]):
            try:
                expected = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
            except Exception:  # a template may refuse a role: then there is nothing to compare
                continue
            found = file.chat(messages)
            beginning = tokenizer.bos_token or ""
            if found not in (expected, expected.removeprefix(beginning)):
                raise VerificationError(
                    f"The chat template says other things in llama.cpp: {_near(found, expected)}. Nothing was written."
                )
            ids = tokenizer(expected, add_special_tokens=False)["input_ids"]
            count += _same_ids(file.tokens(expected, adds_special=False), ids, expected)
    return count


def compare_answers(file: LlamaCpp, model: Exact, tokens: Sequence[int]) -> Figures:
    """Log-probabilities of a text's tokens and, at some places, of the whole vocabulary; a greedy continuation."""
    expected = model.log_probs(tokens)
    gap, total = 0.0, 0.0
    last = len(tokens) - 1
    for place in range(last):
        told = file.log_prob(tokens[: place + 1], tokens[place + 1])
        total += told
        gap = _larger(gap, told - float(expected[place, tokens[place + 1]]))
    for place in sorted({round(part * last / POSITIONS) for part in range(1, POSITIONS + 1)}):
        for token, told in file.next_log_probs(tokens[: place + 1], expected.shape[1]).items():
            if told > SMALLEST:
                gap = _larger(gap, told - float(expected[place, token]))
    own = -float(sum(expected[place, tokens[place + 1]] for place in range(last)))
    start = tokens[: max(1, len(tokens) // 2)]
    greedy = model.continued(start, GENERATED)
    same = 0
    for found, (token, margin) in zip(file.greedy(start, GENERATED), greedy, strict=False):
        if found != token and margin > 2 * LARGEST_GAP:
            break
        same += 1
        if found != token:  # two that are equally probable: from here on the texts may differ
            greedy = greedy[:same]
            break
    return Figures(gap, math.exp(-total / last), math.exp(own / last), last, same, len(greedy))


def check(
    exact: Path, file: Path, kind: str, model: Exact, tokenizer: Any, texts: Sequence[str], longest: int
) -> Checked:
    """The file in float32 must say what PyTorch says; the one that is left is told for what it costs."""
    text = "\n".join(texts) or TEXT
    tokens = list(tokenizer(text[: 20 * LENGTH])["input_ids"])[: min(LENGTH, longest - GENERATED)]
    if len(tokens) < 2:
        raise VerificationError("The text to compare on has no two tokens: give a longer one.")
    with LlamaCpp(exact, context=longest) as opened:
        spelled = compare_words(opened, tokenizer, [text[:4000] for text in texts])
        found = compare_answers(opened, model, tokens)
    allowed = max(LARGEST_GAP, min(UNSURE, ORDERS * model.own_gap(tokens)))
    if not found.gap <= allowed or found.generated < found.of:
        raise VerificationError(
            f"llama.cpp answers otherwise than PyTorch: log-probabilities differ by {found.gap:.1e} (allowed: "
            f"{allowed:.0e}), and {found.generated} of {found.of} generated tokens agree. Nothing was written; "
            "please report it with the model."
        )
    told = [
        f"llama.cpp in float32: log-probabilities within {found.gap:.1e} of PyTorch's ({found.tokens} tokens); "
        f"{spelled} token ids and {found.of} generated tokens equal; perplexity {found.perplexity:.4g} "
        f"(PyTorch {found.model_perplexity:.4g})"
    ]
    figures: dict[str, float] = {"gap": found.gap, "token_ids": spelled, "generated": found.of,
        "perplexity_f32": found.perplexity, "perplexity_pytorch": found.model_perplexity}  # fmt: skip
    if kind != "f32":
        with LlamaCpp(file, context=longest, exact=False) as opened:
            rough = compare_answers(opened, model, tokens)
        ratio = rough.perplexity / found.perplexity
        if not 1 / ROUGHEST < ratio < ROUGHEST:
            raise VerificationError(
                f"In {kind} the perplexity is {rough.perplexity:.4g}, {ratio:.2f} times that in float32: too rough for "
                "this model. Nothing was written; take more bits (--quantize q8_0)."
            )
        told.append(f"{kind}, as llama.cpp runs it by default: perplexity {rough.perplexity:.4g} ({ratio - 1:+.2%})")
        figures |= {"perplexity": rough.perplexity}
    return Checked(figures, tuple(told))


def _same_ids(found: Sequence[int], expected: Sequence[int], text: str) -> int:
    if list(found) != list(expected):
        raise VerificationError(
            f"llama.cpp reads text otherwise than the tokenizer ({_near(found, expected)}) in {text[:60]!r}. Nothing "
            "was written. If the tokenizer is split in a way that llama.cpp knows by another name, say it with "
            "--pre-tokenizer."
        )
    return len(found)


def _near(found: Any, expected: Any) -> str:
    """Where two sequences part."""
    place = next(
        (i for i, (a, b) in enumerate(zip(found, expected, strict=False)) if a != b), min(len(found), len(expected))
    )
    start = max(0, place - 2)
    return f"at {place}: {found[start : place + 6]!r} instead of {expected[start : place + 6]!r}"


def _larger(gap: float, difference: float) -> float:
    return gap if abs(difference) <= gap else abs(difference)  # also where it is not a number
