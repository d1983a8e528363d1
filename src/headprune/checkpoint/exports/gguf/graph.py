"""A decoder as llama.cpp computes it: RMS norms, rotary positions, grouped attention, a gated feed-forward part.

Whether a model is one is told by its structure: every parameter must have a place in this graph, and the graph, run
here with the tensors as they will be written, must answer as the model does. No list of families decides it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from headprune.errors import UnsupportedModelError
from headprune.surgery.apply import BiasOnly
from headprune.types import Config

# What a layer of transformers calls the parts, and what llama.cpp calls them.
PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
ATTENTION = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output")
OUTSIDE = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)")
NO_NEURONS = 32  # a feed-forward part of none would take the layer's attention with it: so many zeros, one block
STILL_ROPES = ("default", "linear", "yarn", "llama3")  # the others turn by how long the text is
SAME = 1e-3  # of the largest logit: another graph is off by far more, another order of sums by far less
SAME_IN_HALVES = 5e-2  # where the model computes in 16 bits
KNOWN_REASONS = (
    (r"\.(q|k)_norm\.", "norms of queries and keys"),
    (r"\.(experts|block_sparse_moe|gate)\.", "experts"),
    (r"(pre|post)_feedforward_layernorm", "norms after its parts"),
    (r"\.sinks$", "attention sinks"),
)


@dataclass(frozen=True)
class Layer:
    """One layer's counts and tensors, by the names of llama.cpp."""

    heads: int
    kv_heads: int
    neurons: int
    tensors: Mapping[str, Tensor]


@dataclass(frozen=True)
class Decoder:
    """A model as this graph has it."""

    layers: tuple[Layer, ...]
    outside: Mapping[str, Tensor]
    head_dim: int
    rms_eps: float
    rope_base: float
    rope_factors: Tensor | None  # by what each frequency is divided
    is_tied: bool
    notes: tuple[str, ...] = ()

    @property
    def is_uniform(self) -> bool:
        return len({(layer.heads, layer.kv_heads, layer.neurons) for layer in self.layers}) == 1

    def logits(self, ids: Tensor) -> Tensor:
        """What llama.cpp will compute for one text, (length,) -> (length, vocabulary)."""
        inner = functional.embedding(ids, self.outside["token_embd.weight"].float())
        for layer in self.layers:
            part = {name: tensor.float() for name, tensor in layer.tensors.items()}
            if layer.heads:
                inner = inner + self._attention(self._norm(inner, part["attn_norm.weight"]), layer, part)
            normed = self._norm(inner, part["ffn_norm.weight"])
            gate = functional.silu(_linear(normed, part, "ffn_gate"))
            inner = inner + _linear(gate * _linear(normed, part, "ffn_up"), part, "ffn_down")
        inner = self._norm(inner, self.outside["output_norm.weight"].float())
        head = self.outside.get("output.weight", self.outside["token_embd.weight"])
        return functional.linear(inner, head.float())

    def _norm(self, inner: Tensor, weight: Tensor) -> Tensor:
        return inner * torch.rsqrt(inner.pow(2).mean(-1, keepdim=True) + self.rms_eps) * weight

    def _attention(self, inner: Tensor, layer: Layer, part: Mapping[str, Tensor]) -> Tensor:
        length = len(inner)
        heads = {"attn_q": layer.heads, "attn_k": layer.kv_heads, "attn_v": layer.kv_heads}
        query, key, value = (
            _linear(inner, part, name).view(length, count, self.head_dim).transpose(0, 1)  # (heads, length, width)
            for name, count in heads.items()
        )
        query, key = self._turned(query), self._turned(key)
        found = functional.scaled_dot_product_attention(
            query[None], key[None], value[None], is_causal=True, enable_gqa=True
        )
        return _linear(found[0].transpose(0, 1).reshape(length, -1), part, "attn_output")

    def _turned(self, heads: Tensor) -> Tensor:
        """Rotated by its place, in pairs of neighbours."""
        frequency = _frequencies(self.rope_base, self.head_dim, heads.device)
        if self.rope_factors is not None:
            frequency = frequency / self.rope_factors.to(heads.device)
        angle = torch.arange(heads.shape[1], device=heads.device)[:, None] * frequency  # (length, width / 2)
        even, odd = heads[..., 0::2], heads[..., 1::2]
        turned = (even * angle.cos() - odd * angle.sin(), even * angle.sin() + odd * angle.cos())
        return torch.stack(turned, dim=-1).flatten(-2)


def _linear(inner: Tensor, part: Mapping[str, Tensor], name: str) -> Tensor:
    return functional.linear(inner, part[f"{name}.weight"], part.get(f"{name}.bias"))


def decoder_of(model: nn.Module, example: Tensor) -> Decoder:
    """The model in this graph, compared with it on an example, (length,); or why it does not fit."""
    name = type(model).__name__
    config: Config = model.config
    weights = _by_place(model, name)
    _refuse_windows(name, config)
    base, factors, scale = _rope(model, name)
    width = _head_width(model, name)
    tied = "output.weight" not in weights.outside
    notes: list[str] = []
    layers = [
        _layer(index, weights.layers.get(index, {}), model, width, scale, notes)
        for index in range(config.num_hidden_layers)
    ]
    decoder = Decoder(
        tuple(layers), weights.outside, width, float(config.rms_norm_eps), base, factors, tied, tuple(notes)
    )
    with torch.no_grad():
        expected = model(input_ids=example[None], use_cache=False).logits[0].float()
        found = decoder.logits(example)
    gap = float((found - expected).abs().max())
    allowed = SAME if model.get_parameter("model.norm.weight").dtype == torch.float32 else SAME_IN_HALVES
    if not gap <= allowed * max(1.0, float(expected.abs().max())):
        raise UnsupportedModelError(
            f"{name} computes something else than the graph of llama.cpp that takes other heads in every layer (their "
            f"answers differ by {gap:.1e}): another activation, scale, norm or position. format='onnx' and 'openvino' "
            "take any graph; with as many heads in every layer, format='plain' and llama.cpp's own converter do, too."
        )
    return decoder


@dataclass(frozen=True)
class _Placed:
    outside: dict[str, Tensor]
    layers: dict[int, dict[str, Tensor]]


def _by_place(model: nn.Module, name: str) -> _Placed:
    """Every parameter at its place in the graph; one without a place is another graph."""
    found = _Placed({}, {})
    for key, tensor in model.state_dict().items():
        match = LAYER.fullmatch(key)
        if key in OUTSIDE:
            found.outside[OUTSIDE[key]] = tensor
        elif match is not None and match[2] in PARTS:
            found.layers.setdefault(int(match[1]), {})[f"{PARTS[match[2]]}.{match[3]}"] = tensor
        else:
            why = next((told for pattern, told in KNOWN_REASONS if re.search(pattern, key)), "other parts")
            raise UnsupportedModelError(
                f"{name} has {why} ({key}), for which the graph of llama.cpp that takes other heads in every layer has "
                "no place. It fits Llama, SmolLM2, Mistral without a window and Qwen2. format='onnx' and 'openvino' "
                "take any graph; with as many heads in every layer, format='plain' and llama.cpp's own converter do."
            )
    embedding, head = (found.outside.get(key) for key in ("token_embd.weight", "output.weight"))
    if embedding is None or "output_norm.weight" not in found.outside:
        raise UnsupportedModelError(f"{name} has no token embeddings, or no last norm: llama.cpp runs language models.")
    if head is None and getattr(model, "lm_head", None) is None:
        raise UnsupportedModelError(f"{name} has no output for words: llama.cpp runs models that do (…ForCausalLM).")
    if head is not None and head.data_ptr() == embedding.data_ptr():
        del found.outside["output.weight"]  # llama.cpp takes the embeddings then
    return found


def _head_width(model: nn.Module, name: str) -> int:
    layers = model.get_submodule("model.layers")
    assert isinstance(layers, nn.ModuleList)
    widths = {int(layer.self_attn.head_dim) for layer in layers}  # type: ignore[union-attr,arg-type]
    if len(widths) != 1:
        raise UnsupportedModelError(
            f"The heads of {name} are {', '.join(map(str, sorted(widths)))} channels wide: llama.cpp has one width for "
            "all layers. format='onnx' takes any."
        )
    return widths.pop()


def _layer(index: int, found: dict[str, Tensor], model: nn.Module, width: int, scale: float, notes: list[str]) -> Layer:
    """A layer's tensors in the order of llama.cpp; what was emptied, in the form that its loader takes."""
    place, device = f"model.layers.{index}", model.get_parameter("model.norm.weight").device
    config: Config = model.config
    hidden = int(config.hidden_size)
    dtype = model.get_parameter("model.norm.weight").dtype
    tensors = dict(found)

    def zeros(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=device)

    if isinstance(model.get_submodule(f"{place}.self_attn.o_proj"), BiasOnly):
        if index == 0 or "attn_output.bias" in tensors:
            why = "a first layer" if index == 0 else "a layer that adds a bias"
            notes.append(f"layer {index} has one head of zeros, because llama.cpp takes no {why[2:]} without heads")
            tensors |= {f"attn_{part}.weight": zeros(width, hidden) for part in "qkv"}
            tensors["attn_output.weight"] = zeros(hidden, width)
        else:
            tensors = {name: tensor for name, tensor in tensors.items() if name.partition(".")[0] not in ATTENTION}
    if isinstance(model.get_submodule(f"{place}.mlp.down_proj"), BiasOnly):
        tensors |= {f"ffn_{part}.weight": zeros(NO_NEURONS, hidden) for part in ("gate", "up")}
        tensors["ffn_down.weight"] = zeros(hidden, NO_NEURONS)
    for name in ("attn_q", "attn_k"):
        for kind in ("weight", "bias"):
            if f"{name}.{kind}" in tensors:
                tensors[f"{name}.{kind}"] = _neighbours(tensors[f"{name}.{kind}"], width) * scale
    heads, kv_heads = (len(tensors.get(f"attn_{part}.weight", ())) // width for part in "qk")
    if "attn_norm.weight" in tensors or not heads:
        return Layer(heads, kv_heads, len(tensors["ffn_gate.weight"]), tensors)
    raise UnsupportedModelError(f"Layer {index} has no norm before its attention: llama.cpp's graph has one.")


def _neighbours(rows: Tensor, width: int) -> Tensor:
    """Rows of heads with those two next to each other that are rotated together; in transformers they are half a head
    apart."""
    rest = rows.shape[1:]
    return rows.view(-1, 2, width // 2, *rest).transpose(1, 2).reshape(rows.shape)  # (heads, 2, width / 2, …)


def _frequencies(base: float, width: int, device: torch.device) -> Tensor:
    return base ** (-torch.arange(0, width, 2, device=device).float() / width)


def _rope(model: nn.Module, name: str) -> tuple[float, Tensor | None, float]:
    """The base, what divides each frequency, and by how much queries and keys grow: all kinds of scaling that do not
    depend on the text are that."""
    rope: dict[str, object] = dict(getattr(model.config, "rope_parameters", None) or {})
    kind, base = str(rope.get("rope_type", "default")), rope.get("rope_theta")
    rotary = getattr(model.get_submodule("model"), "rotary_emb", None)
    if rotary is None or not isinstance(base, int | float):
        raise UnsupportedModelError(f"{name} has no rotary positions of one kind, which llama.cpp's graph has.")
    if kind not in STILL_ROPES:
        raise UnsupportedModelError(
            f"The positions of {name} are scaled by '{kind}', which depends on how long a text is; llama.cpp's graph "
            f"takes {', '.join(STILL_ROPES)}. format='onnx' takes any."
        )
    width = _head_width(model, name)
    inverse = rotary.inv_freq.float()
    if len(inverse) * 2 != width:
        raise UnsupportedModelError(
            f"{name} rotates {2 * len(inverse)} of the {width} channels of a head; llama.cpp's graph rotates all."
        )
    factors = _frequencies(float(base), width, inverse.device) / inverse
    is_plain = bool(torch.allclose(factors, torch.ones_like(factors), rtol=1e-5))
    return float(base), None if is_plain else factors, float(rotary.attention_scaling)


def _refuse_windows(name: str, config: Config) -> None:
    window = getattr(config, "sliding_window", None)
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    sees = window is None or getattr(config, "use_sliding_window", True) is False
    if kinds - {"full_attention", "sliding_attention"}:
        raise UnsupportedModelError(f"{name} has layers of kind {', '.join(sorted(kinds))}; expected attention alone.")
    if not sees and window < config.max_position_embeddings:
        raise UnsupportedModelError(
            f"{name} sees only the last {window} tokens (sliding_window). llama.cpp's graph for other heads in every "
            f"layer has no window. For texts of up to {window} tokens it makes no difference: set "
            f"config.sliding_window = None and config.max_position_embeddings = {window}, and export again."
        )


def tensors_of(decoder: Decoder) -> Iterator[tuple[str, Tensor]]:
    """Every tensor by its full name, in the order of the file."""
    yield "token_embd.weight", decoder.outside["token_embd.weight"]
    for index, layer in enumerate(decoder.layers):
        for name, tensor in layer.tensors.items():
            yield f"blk.{index}.{name}", tensor
    for name, tensor in decoder.outside.items():
        if name != "token_embd.weight":
            yield name, tensor
    if decoder.rope_factors is not None:
        yield "rope_freqs.weight", decoder.rope_factors
