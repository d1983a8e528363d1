"""A tokenizer as GGUF has it: BPE over bytes (`gpt2`), or over characters with bytes for the rest (`llama`)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headprune.errors import CheckpointError, UnsupportedModelError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # llama.cpp's kinds of tokens
SPACE = "▁"
# llama.cpp knows a fixed set of ways to split a text before merging, each by a name. A way is the steps of the
# tokenizer.json: digits one by one, a pattern, bytes with GPT-2's pattern (True) or without one (False).
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPLITS: dict[tuple[object, ...], str] = {
    (True,): "gpt-2",
    ("digits", True): "smollm",
    (rf"{CONTRACTIONS}|\p{{N}}{{1,3}}{REST}", False): "llama-bpe",
    (rf"{CONTRACTIONS}|\p{{N}}{REST}", False): "qwen2",
}


@dataclass(frozen=True)
class Vocabulary:
    """What `tokenizer.ggml.*` says."""

    model: str
    split: str
    tokens: tuple[str, ...]
    types: tuple[int, ...]
    merges: tuple[str, ...]
    scores: tuple[float, ...]
    special: Mapping[str, int]  # bos, eos, unk, pad
    adds_bos: bool
    adds_eos: bool
    adds_space: bool
    chat_template: str | None


def load_tokenizer(name: str) -> Any:
    """The tokenizer beside a model; its files may come from anybody, so no code of theirs is run."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(name, local_files_only=True)
    except Exception as error:  # whatever a tokenizer's own code says
        raise CheckpointError(
            f"No tokenizer could be loaded from '{name}' ({type(error).__name__}: {str(error)[:200]}). llama.cpp reads "
            "text by a vocabulary in the file: put tokenizer.json beside the model, or pass tokenizer=."
        ) from error


def vocabulary_of(tokenizer: Any, size: int, split: str | None = None) -> Vocabulary:
    """A vocabulary for a model with `size` embeddings; `split` names llama.cpp's way to split a text, if it is not to
    be found out."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise UnsupportedModelError(
            f"{type(tokenizer).__name__} has no tokenizer.json, by which vocabulary and merges are known. Save it with "
            "a fast tokenizer first."
        )
    made = json.loads(backend.to_str())
    if made["model"]["type"] != "BPE":
        raise UnsupportedModelError(
            f"The tokenizer is of the kind {made['model']['type']}; BPE is what can be written for llama.cpp."
        )
    by_bytes = not made["model"].get("byte_fallback")
    tokens, types = _tokens(tokenizer, made, size)
    merges = [" ".join(pair) if isinstance(pair, list) else pair for pair in made["model"]["merges"]]
    adds_bos, adds_eos = _added(tokenizer)
    names = {"bos": tokenizer.bos_token_id, "eos": tokenizer.eos_token_id, "unk": tokenizer.unk_token_id,
             "pad": tokenizer.pad_token_id}  # fmt: skip
    return Vocabulary(
        model="gpt2" if by_bytes else "llama",
        split=(split or _split(made)) if by_bytes else "default",
        tokens=tuple(tokens),
        types=tuple(types),
        merges=tuple(merges) if by_bytes else (),
        scores=() if by_bytes else _scores(tokens, merges),
        special={name: index for name, index in names.items() if index is not None},
        adds_bos=adds_bos,
        adds_eos=adds_eos,
        adds_space=_adds_space(made),
        chat_template=_chat_template(tokenizer),
    )


def _tokens(tokenizer: Any, made: Mapping[str, Any], size: int) -> tuple[list[str], list[int]]:
    by_index = {index: token for token, index in tokenizer.get_vocab().items()}
    if by_index and max(by_index) >= size:
        raise CheckpointError(
            f"The tokenizer has a token {max(by_index)}, and the model {size} embeddings: they do not belong together, "
            "or the model was never resized (model.resize_token_embeddings)."
        )
    added = {one["id"]: one for one in made["added_tokens"]}
    unknown = made["model"].get("unk_token")
    tokens, types = [], []
    for index in range(size):
        token = by_index.get(index)
        if token is None:
            tokens.append(f"[PAD{index}]")
            types.append(UNUSED)
            continue
        tokens.append(token)
        if index in added:
            types.append(CONTROL if added[index]["special"] else USER_DEFINED)
        elif len(token) == 6 and token.startswith("<0x") and made["model"].get("byte_fallback"):
            types.append(BYTE)
        else:
            types.append(UNKNOWN if token == unknown else NORMAL)
    return tokens, types


def _scores(tokens: Sequence[str], merges: Sequence[str]) -> tuple[float, ...]:
    """llama.cpp merges by the score of what comes out: earlier merges have higher ones."""
    rank = {merge.replace(" ", ""): place for place, merge in reversed(list(enumerate(merges)))}
    return tuple(-float(rank.get(token, len(merges))) for token in tokens)


def _split(made: Mapping[str, Any]) -> str:
    steps = _steps(made.get("pre_tokenizer"))
    found: list[object] = []
    for step in steps:
        if step["type"] == "ByteLevel":
            found.append(bool(step.get("use_regex", True)))
        elif step["type"] == "Digits" and step.get("individual_digits"):
            found.append("digits")
        elif step["type"] == "Split" and step.get("behavior") == "Isolated" and not step.get("invert"):
            found.append(next(iter(step["pattern"].values())))
        else:
            found.append(step["type"])
    name = SPLITS.get(tuple(found))
    if name is None:
        told = ", ".join(step["type"] for step in steps) or "nothing"
        raise UnsupportedModelError(
            f"The tokenizer splits text by {told}, in a way that is not known by its name in llama.cpp (known: "
            f"{', '.join(SPLITS.values())}). If llama.cpp has a name for it, say it: pre_tokenizer='…' "
            "(--pre-tokenizer); token ids are compared all the same."
        )
    return name


def _steps(made: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    if made is None:
        return []
    inner = made.get("pretokenizers", made.get("normalizers"))
    return [step for one in inner for step in _steps(one)] if inner is not None else [made]


def _adds_space(made: Mapping[str, Any]) -> bool:
    """Whether a text begins as if a space were before it."""
    steps = [*_steps(made.get("normalizer")), *_steps(made.get("pre_tokenizer"))]
    return any(
        (step["type"] == "Prepend" and step.get("prepend") == SPACE)
        or (step["type"] == "Metaspace" and step.get("prepend_scheme", "always") != "never")
        or (step["type"] == "ByteLevel" and step.get("add_prefix_space"))
        for step in steps
    )


def _added(tokenizer: Any) -> tuple[bool, bool]:
    """Whether it puts a beginning and an end around a text."""
    text = "a"
    around = tokenizer(text)["input_ids"]
    inner = tokenizer(text, add_special_tokens=False)["input_ids"]
    begins = len(around) > len(inner) and around[0] == tokenizer.bos_token_id
    ends = len(around) > len(inner) and around[-1] == tokenizer.eos_token_id
    if len(around) != len(inner) + begins + ends:
        raise UnsupportedModelError(
            f"The tokenizer makes {around} of '{text}', with more than a beginning and an end around {inner}: "
            "llama.cpp adds no other tokens."
        )
    return begins, ends


def _chat_template(tokenizer: object) -> str | None:
    found = getattr(tokenizer, "chat_template", None)
    if isinstance(found, dict):
        found = found.get("default")
    return found or None
