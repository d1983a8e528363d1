"""Writing a GGUF file, one tensor after another: never more than one in memory beside the model."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from headprune.checkpoint.exports.gguf.graph import Decoder, Layer, tensors_of
from headprune.checkpoint.exports.gguf.vocabulary import Vocabulary
from headprune.errors import CheckpointError, MissingExtraError, UnsupportedModelError
from headprune.registry import known_name

if TYPE_CHECKING:
    from gguf import GGMLQuantizationType, GGUFWriter

# How weights may be stored, and what llama.cpp calls a file whose matrices are.
KINDS = {
    "f32": "ALL_F32", "f16": "MOSTLY_F16", "bf16": "MOSTLY_BF16", "q8_0": "MOSTLY_Q8_0", "q5_1": "MOSTLY_Q5_1",
    "q5_0": "MOSTLY_Q5_0", "q4_1": "MOSTLY_Q4_1", "q4_0": "MOSTLY_Q4_0",
}  # fmt: skip
BLOCK = 32  # values of a row that share a scale, in all kinds above that have one
ROUGH = ("q5_1", "q5_0", "q4_1", "q4_0")  # in these, words and logits stay at 8 bits, where errors cost most
WORDS = ("token_embd.weight", "output.weight")
OWN = {"qwen2": "qwen2"}  # families whose architecture has its own name; the others are `llama`


@dataclass(frozen=True)
class Header:
    """What a file says of its model besides the graph."""

    name: str
    model_type: str
    context: int


@dataclass(frozen=True)
class Written:
    """What a file became."""

    architecture: str
    kind: str
    notes: tuple[str, ...]


def write_gguf(file: Path, decoder: Decoder, words: Vocabulary, header: Header, kind: str) -> Written:
    """The model in llama.cpp's format: the family's own architecture if all layers are alike, else `deci`, which
    counts heads and neurons by layer."""
    gguf = packages()
    known_name("--quantize", kind, KINDS)
    stored, notes = _padded(decoder, kind)
    architecture = _architecture(stored, header.model_type)
    writer = gguf.GGUFWriter(file, architecture)
    try:
        _describe(writer, stored, header, KINDS[kind])
        _spell(writer, words)
        turned = architecture in OWN.values()
        kinds = []
        for name, tensor in tensors_of(stored):
            found = _kind_of(name, tensor, kind)
            kinds.append(found)
            if found != kind and tensor.dim() > 1 and name not in WORDS:
                notes.append(f"{name} stays in {found}: its rows of {tensor.shape[-1]} are no whole blocks of {BLOCK}")
            quant = _quant(gguf, found)
            shape = gguf.quant_shape_to_byte_shape(tuple(tensor.shape), quant)
            writer.add_tensor_info(name, shape, np.dtype(np.uint8), math.prod(shape), raw_dtype=quant)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for (name, tensor), found in zip(tensors_of(stored), kinds, strict=True):
            values = _halves(name, tensor, stored.head_dim) if turned else tensor
            floats = values.detach().to("cpu", torch.float32).contiguous().numpy()
            writer.write_tensor_data(gguf.quantize(floats, _quant(gguf, found)))
    except OSError as error:
        raise CheckpointError(
            f"'{file.name}' could not be written ({error}). Nothing is left of it. Free some space, or choose another "
            "--out or a smaller --quantize."
        ) from error
    finally:
        writer.close()
    return Written(architecture, kind, tuple(_short(notes)))


def _architecture(decoder: Decoder, model_type: str) -> str:
    first = decoder.layers[0]
    if not decoder.is_uniform or not first.heads:
        return "deci"
    own = OWN.get(model_type, "llama")
    is_whole = first.heads * decoder.head_dim == decoder.outside["token_embd.weight"].shape[1]
    fits = is_whole and decoder.rope_factors is None and not _has_output_bias(decoder)
    return own if fits else "llama"  # the same graph, with a place for fewer heads, these factors and biases


def _describe(writer: GGUFWriter, decoder: Decoder, header: Header, file_type: str) -> None:
    import gguf

    def of_layers(counts: list[int]) -> int | list[int]:
        return counts if writer.arch == "deci" else counts[0]

    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_name(header.name)
    writer.add_file_type(gguf.LlamaFileType[file_type])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_block_count(len(decoder.layers))
    writer.add_context_length(header.context)
    writer.add_embedding_length(decoder.outside["token_embd.weight"].shape[1])
    writer.add_vocab_size(len(decoder.outside["token_embd.weight"]))
    writer.add_head_count(of_layers([layer.heads for layer in decoder.layers]))
    writer.add_head_count_kv(of_layers([layer.kv_heads for layer in decoder.layers]))
    writer.add_feed_forward_length(of_layers([layer.neurons for layer in decoder.layers]))
    for add in (writer.add_key_length, writer.add_value_length, writer.add_rope_dimension_count):
        add(decoder.head_dim)
    writer.add_rope_freq_base(decoder.rope_base)
    writer.add_layer_norm_rms_eps(decoder.rms_eps)


def _spell(writer: GGUFWriter, words: Vocabulary) -> None:
    writer.add_tokenizer_model(words.model)
    writer.add_tokenizer_pre(words.split)
    writer.add_token_list(list(words.tokens))
    writer.add_token_types(list(words.types))
    if words.merges:
        writer.add_token_merges(list(words.merges))
    if words.scores:
        writer.add_token_scores(list(words.scores))
    adders = {"bos": writer.add_bos_token_id, "eos": writer.add_eos_token_id, "unk": writer.add_unk_token_id,
              "pad": writer.add_pad_token_id}  # fmt: skip
    for name, index in words.special.items():
        adders[name](index)
    writer.add_add_bos_token(words.adds_bos)
    writer.add_add_eos_token(words.adds_eos)
    writer.add_add_space_prefix(words.adds_space)
    if words.chat_template:
        writer.add_chat_template(words.chat_template)


def _padded(decoder: Decoder, kind: str) -> tuple[Decoder, list[str]]:
    """With neurons of zeros up to whole blocks, where weights are stored in blocks: exact, and small."""
    notes = list(decoder.notes)
    if not kind.startswith("q"):
        return decoder, notes
    layers, added = [], 0
    for layer in decoder.layers:
        more = -layer.neurons % BLOCK
        added += more
        layers.append(_with_neurons(layer, more) if more else layer)
    if added:
        count = sum(layer.neurons for layer in decoder.layers)
        notes.append(
            f"{added} neurons of zeros fill up blocks of {BLOCK} ({added / count:.1%} of the neurons; the answers stay)"
        )
    return replace(decoder, layers=tuple(layers)), notes


def _with_neurons(layer: Layer, more: int) -> Layer:
    tensors = dict(layer.tensors)
    for name in ("ffn_gate.weight", "ffn_up.weight"):
        tensors[name] = functional.pad(tensors[name], (0, 0, 0, more))
    for name in ("ffn_gate.bias", "ffn_up.bias"):
        if name in tensors:
            tensors[name] = functional.pad(tensors[name], (0, more))
    tensors["ffn_down.weight"] = functional.pad(tensors["ffn_down.weight"], (0, more))
    return replace(layer, neurons=layer.neurons + more, tensors=tensors)


def _has_output_bias(decoder: Decoder) -> bool:
    places = ("attn_output.bias", "ffn_gate.bias", "ffn_up.bias", "ffn_down.bias")
    return any(place in layer.tensors for layer in decoder.layers for place in places)


def _kind_of(name: str, tensor: Tensor, kind: str) -> str:
    if tensor.dim() < 2:
        return "f32"  # norms, biases and frequencies: small, and llama.cpp expects it
    if kind in ROUGH and name in WORDS:
        kind = "q8_0"
    return "f16" if kind.startswith("q") and tensor.shape[-1] % BLOCK else kind


def _halves(name: str, tensor: Tensor, width: int) -> Tensor:
    """Queries and keys for an architecture that rotates channels half a head apart, as transformers does."""
    if ".attn_q." not in name and ".attn_k." not in name:
        return tensor
    return tensor.view(-1, width // 2, 2, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)


def _short(notes: list[str], most: int = 3) -> Iterator[str]:
    yield from notes[:most]
    if len(notes) > most:
        yield f"and {len(notes) - most} more like these"


def _quant(gguf: Any, kind: str) -> GGMLQuantizationType:
    found: GGMLQuantizationType = gguf.GGMLQuantizationType[kind.upper()]
    return found


def packages() -> Any:
    try:
        import gguf
    except ImportError as error:
        raise MissingExtraError(f"GGUF needs {error.name}: pip install 'headprune[gguf]'.") from error
    if not hasattr(gguf, "quant_shape_to_byte_shape"):
        raise UnsupportedModelError("The package gguf is too old to quantise: pip install -U 'headprune[gguf]'.")
    return gguf
