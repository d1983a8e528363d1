"""A real llama.cpp, from the package xllamacpp: it opens a file and answers on a port of this machine alone."""

from __future__ import annotations

import gc
import json
import secrets
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from headprune.errors import MissingExtraError, VerificationError

FORCED = 1e6  # added to the logit of the token whose probability is asked for; what is told is from before that


class LlamaCpp:
    """A GGUF file, opened. `exact` leaves out what llama.cpp rounds by default: no flash attention, a float32 cache."""

    def __init__(self, file: Path, *, context: int, exact: bool = True, threads: int | None = None) -> None:
        package = xllamacpp()
        asked = package.CommonParams()
        asked.model.path = str(file)
        asked.n_ctx, asked.n_parallel = context, 1
        asked.verbosity = -1
        asked.warmup = asked.fit_params = False
        asked.use_jinja = True
        asked.port = 0  # any that is free
        self._key = secrets.token_hex(16)
        asked.api_keys = [self._key]
        asked.cpuparams.n_threads = asked.cpuparams_batch.n_threads = threads or torch.get_num_threads()
        if exact:
            asked.flash_attn_type = package.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
            asked.cache_type_k = asked.cache_type_v = package.ggml_type.GGML_TYPE_F32
        try:
            self._server = package.Server(asked)
        except Exception as error:  # its C++ side raises several kinds
            raise VerificationError(
                f"llama.cpp does not open '{file.name}' ({error}). Nothing was written; please report it."
            ) from error
        self._address = self._server.listening_address
        self._completed([0], n_predict=1)  # a server that has not begun to work would never stop

    def __enter__(self) -> LlamaCpp:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        del self._server  # which stops it
        gc.collect()

    def tokens(self, text: str, *, adds_special: bool = True) -> list[int]:
        """A text as llama.cpp reads it."""
        answer = self._ask("/tokenize", {"content": text, "add_special": adds_special, "parse_special": True})
        return [int(token) for token in answer["tokens"]]

    def chat(self, messages: Sequence[dict[str, str]]) -> str:
        """A conversation by the file's template."""
        return str(self._ask("/apply-template", {"messages": list(messages)})["prompt"])

    def next_log_probs(self, tokens: Sequence[int], vocabulary: int) -> dict[int, float]:
        """Of every token after these."""
        found = self._forced(tokens, tokens[-1], vocabulary)  # any but an end, after which nothing is told
        return {int(one["id"]): float(one["logprob"]) for one in found["top_logprobs"]}

    def log_prob(self, tokens: Sequence[int], following: int) -> float:
        """Of one token after these."""
        return float(self._forced(tokens, following, 1)["logprob"])

    def greedy(self, tokens: Sequence[int], count: int) -> list[int]:
        """The most probable continuation."""
        return [int(token) for token in self._completed(tokens, n_predict=count, return_tokens=True)["tokens"]]

    def timings(self, tokens: Sequence[int], count: int) -> dict[str, float]:
        """Milliseconds of a prompt and of tokens after it, as llama.cpp measures them."""
        answer = self._completed(tokens, n_predict=count, ignore_eos=True, cache_prompt=False)
        return {name: float(value) for name, value in answer["timings"].items()}

    def _forced(self, tokens: Sequence[int], following: int, most: int) -> Any:
        """A step that is made to end with one token: its probability, and those of the `most` probable ones."""
        answer = self._completed(tokens, n_predict=1, n_probs=most, logit_bias=[[following, FORCED]])
        found = answer.get("completion_probabilities", [])
        if len(found) != 1 or found[0]["id"] != following:
            raise VerificationError(f"llama.cpp tells no probability of token {following}: is it an end of a text?")
        return found[0]

    def _completed(self, tokens: Sequence[int], **more: object) -> Any:
        return self._ask("/completion", {"prompt": list(tokens), "temperature": 0, "cache_prompt": True, **more})

    def _ask(self, place: str, body: dict[str, Any]) -> Any:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self._key}"}
        request = urllib.request.Request(self._address + place, json.dumps(body).encode(), headers)
        try:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise VerificationError(f"llama.cpp says {error.code} to {place}: {error.read()[:300]!r}") from error


def xllamacpp() -> Any:
    """The package with llama.cpp inside."""
    try:
        import xllamacpp
    except ImportError as error:
        raise MissingExtraError(
            f"The file is compared with the model by a real llama.cpp, which needs {error.name}: pip install "
            "'headprune[gguf]'. To write it without that, say --unchecked (unchecked=True)."
        ) from error
    return xllamacpp
