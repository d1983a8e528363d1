"""Pruned models in a real llama.cpp: every export here is opened by it and compared with PyTorch."""

from __future__ import annotations

import builtins
import errno
import json

import pytest
import torch
from gguf import GGUFReader, GGUFWriter
from typer.testing import CliRunner

import headprune as hp
from headprune.checkpoint.export import export_checked
from headprune.checkpoint.exports.gguf import comparison
from headprune.checkpoint.exports.gguf import file as gguf_file
from headprune.cli.app import app
from headprune.errors import (
    CheckpointError,
    HeadpruneError,
    MissingExtraError,
    UnsupportedModelError,
    VerificationError,
)
from tests.checkpoint.exports.gguf.llms import piece_tokenizer, tiny_llm

FAMILIES = {
    "llama": {"tie_word_embeddings": True},
    "qwen2": {"layer_types": None},  # biases of queries, keys and values
    "mistral": {"sliding_window": None},
}
SHAPES = {
    "uneven heads": ["decoder.1:0", "decoder.1:1"],
    "uneven neurons": ["neurons.0:1", "neurons.0:2", "neurons.2:7"],
    "emptied": ["decoder.0", "decoder.2", "neurons.1"],
    "all of it": ["decoder.0", "decoder.2:0", "decoder.2:1", "neurons.1", "neurons.3:5"],
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("llms")
    for family, more in FAMILIES.items():
        tiny_llm(family, root / family, **more)
    return root


def pruned(folder, *names):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    return hp.prune_(model, hp.HeadMask.full(hp.find_heads(model, neurons=True)).without(*names)) if names else model


def said(file):
    return {name: field.contents() for name, field in GGUFReader(file).fields.items()}


def agrees(model, file, **more):
    """Exported, and found equal by llama.cpp: its figures."""
    _, found = export_checked(model, file, "gguf", **more)
    assert found.figures["gap"] < 1e-4  # these are small: the limit of the command is ten times that
    assert found.figures["token_ids"] > 300
    assert found.figures["perplexity_f32"] == pytest.approx(found.figures["perplexity_pytorch"], rel=1e-4)
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_layers_that_differ_answer_in_llama_cpp_as_in_pytorch(family, folders, tmp_path):
    """Uneven heads and neurons, an emptied first and middle layer, in the architecture that counts them by layer."""
    agrees(pruned(folders / family, *SHAPES["all of it"]), tmp_path / "small.gguf", quantize="f32")
    found = said(tmp_path / "small.gguf")
    assert found["general.architecture"] == "deci"
    assert found["deci.attention.head_count"] == [1, 4, 2, 4]  # llama.cpp takes no first layer without a head
    assert found["deci.feed_forward_length"] == [48, 32, 48, 47]
    assert not list(tmp_path.glob(".*"))  # nothing is left of the work


@pytest.mark.parametrize("shape", [name for name in SHAPES if name != "all of it"])
def test_every_shape_alone(shape, folders, tmp_path):
    """Heads alone, neurons alone, whole layers alone."""
    agrees(pruned(folders / "llama", *SHAPES[shape]), tmp_path / "small.gguf", quantize="f32")


@pytest.mark.parametrize(("family", "architecture"), [("llama", "llama"), ("mistral", "llama"), ("qwen2", "llama")])
def test_layers_that_are_alike_have_the_familys_own_architecture(family, architecture, folders, tmp_path):
    """Which any llama.cpp reads; that of Qwen2 takes no fewer heads, but Llama's has the same graph."""
    if family == "qwen2":
        agrees(pruned(folders / family), tmp_path / "whole.gguf", quantize="f32")
        assert said(tmp_path / "whole.gguf")["general.architecture"] == "qwen2"
    agrees(pruned(folders / family, *(f"decoder.{i}:{h}" for i in range(4) for h in (0, 1))), tmp_path / "a.gguf",
           quantize="f32")  # fmt: skip
    found = said(tmp_path / "a.gguf")
    assert found["general.architecture"] == architecture
    assert found[f"{architecture}.attention.head_count"] == 2


def test_rope_scaling_biases_and_repairs_come_along(tmp_path):
    """Llama 3's scaling and YaRN; biases that the model has, and those that a repair has added."""
    ropes = {
        "llama3": {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
                   "high_freq_factor": 4.0, "original_max_position_embeddings": 64},
        "yarn": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64},
    }  # fmt: skip
    for name, rope in ropes.items():
        model = tiny_llm("llama", tmp_path / name, rope_parameters=rope, attention_bias=True, mlp_bias=True)
        heads = hp.find_heads(model, neurons=True)
        mask = hp.HeadMask.full(heads).without("decoder.2", "decoder.1:0", "decoder.1:1", "neurons.3:5")
        ids = torch.randint(0, 400, (4, 24), generator=torch.Generator().manual_seed(0))
        hp.recover_(model, mask, [{"input_ids": ids}], method="bias")
        agrees(hp.prune_(model, mask), tmp_path / f"{name}.gguf", quantize="f32")


def test_pieces_with_a_beginning_are_read_as_by_the_tokenizer(tmp_path):
    """The vocabulary of Llama 2 and Mistral: characters, bytes for the rest."""
    tiny_llm("llama", tmp_path / "model", piece_tokenizer())
    agrees(pruned(tmp_path / "model", "decoder.1:0", "decoder.1:1"), tmp_path / "small.gguf", quantize="f32")
    assert said(tmp_path / "small.gguf")["tokenizer.ggml.add_bos_token"] is True


def test_quantised_files_tell_what_they_cost(folders, tmp_path):
    """Neurons of zeros fill up blocks; rows that no block divides stay in 16 bits, and this is told."""
    model = pruned(folders / "llama", *SHAPES["all of it"])
    sizes = []
    for kind in ("f16", "q8_0", "q4_0"):
        file, found = export_checked(model, tmp_path / f"{kind}.gguf", "gguf", quantize=kind)
        assert 0.5 < found.figures["perplexity"] / found.figures["perplexity_f32"] < 2
        sizes.append(sum(int(tensor.n_bytes) for tensor in GGUFReader(file).tensors))
    assert sizes == sorted(sizes, reverse=True)
    told = " ".join(found.told)
    assert "neurons of zeros fill up blocks of 32" in told
    assert "stays in f16: its rows of 8 are no whole blocks of 32" in told
    assert "perplexity" in told


def test_a_model_in_16_bits_is_compared_in_32(folders, tmp_path):
    """As its weights are, not as 16 bits compute with them."""
    agrees(pruned(folders / "llama", *SHAPES["uneven heads"]).to(torch.bfloat16), tmp_path / "a.gguf", quantize="f32")


@pytest.mark.parametrize(
    ("family", "more", "told"),
    [
        ("qwen3", {"layer_types": None}, "norms of queries and keys"),
        ("mistral", {"sliding_window": 16}, "only the last 16 tokens"),
        ("gpt2", {}, "other parts"),
        ("gemma2", {"layer_types": None}, "norms after its parts"),
        ("llama", {"hidden_act": "gelu"}, "computes something else"),
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "by 'dynamic'"),
    ],
)  # fmt: skip
def test_what_the_graph_does_not_fit_is_refused_by_name(family, more, told, tmp_path):
    """With the reason and with what would work; nothing is written."""
    model = tiny_llm(family, tmp_path / "model", **more)
    with pytest.raises(UnsupportedModelError, match=told) as refusal:
        hp.export(model, tmp_path / "no.gguf", format="gguf")
    assert type(model).__name__ in str(refusal.value)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_heads_of_several_widths_are_refused(folders, tmp_path):
    """llama.cpp has one width for all layers."""
    model = pruned(folders / "llama")
    model.model.layers[1].self_attn.head_dim = 4
    with pytest.raises(UnsupportedModelError, match="4, 8 channels wide"):
        hp.export(model, tmp_path / "no.gguf", format="gguf")


def test_a_vocabulary_without_a_tokenizer_is_refused(folders, tmp_path):
    """Also one that belongs to another model, and one that splits text in an unknown way."""
    from tokenizers import pre_tokenizers

    from tests.checkpoint.exports.gguf.llms import byte_tokenizer

    model = pruned(folders / "llama")
    for place, told in (("", "says of no tokenizer"), (str(tmp_path), "No tokenizer could be loaded")):
        model.config._name_or_path = place
        with pytest.raises(CheckpointError, match=told):
            hp.export(model, tmp_path / "no.gguf", format="gguf")
    odd = byte_tokenizer(pre_tokenizers.Punctuation(), pre_tokenizers.ByteLevel(add_prefix_space=False))
    with pytest.raises(UnsupportedModelError, match="splits text by Punctuation, ByteLevel"):
        hp.export(model, tmp_path / "no.gguf", format="gguf", tokenizer=odd)
    with pytest.raises(VerificationError, match="reads text otherwise than the tokenizer"):
        hp.export(model, tmp_path / "no.gguf", format="gguf", tokenizer=odd, pre_tokenizer="smollm")
    large = piece_tokenizer()
    large.add_tokens([f"word{i}" for i in range(50)])
    with pytest.raises(CheckpointError, match="do not belong together"):
        hp.export(model, tmp_path / "no.gguf", format="gguf", tokenizer=large)
    assert not list(tmp_path.iterdir())


def test_a_file_that_differs_is_not_left(folders, tmp_path, monkeypatch):
    """One query row of one layer in another place is enough."""
    known = gguf_file.tensors_of

    def wrong(decoder):
        for name, tensor in known(decoder):
            yield name, tensor.flip(0) if name == "blk.1.attn_q.weight" else tensor

    monkeypatch.setattr(gguf_file, "tensors_of", wrong)
    with pytest.raises(VerificationError, match=r"llama.cpp answers otherwise than PyTorch"):
        hp.export(pruned(folders / "llama"), tmp_path / "no.gguf", format="gguf", quantize="f32")
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_too_rough_is_not_left(folders, tmp_path, monkeypatch):
    """Another perplexity altogether is another model."""
    monkeypatch.setattr(comparison, "ROUGHEST", 1.0)
    with pytest.raises(VerificationError, match="take more bits"):
        hp.export(pruned(folders / "llama"), tmp_path / "no.gguf", format="gguf", quantize="q4_0")
    assert not list(tmp_path.iterdir())


def test_without_llama_cpp_it_is_written_only_unchecked(folders, tmp_path, monkeypatch):
    """Told by the name of the extra."""
    real = builtins.__import__

    def without(name, *rest):
        if name == "xllamacpp":
            raise ImportError("no", name="xllamacpp")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    model = pruned(folders / "llama")
    with pytest.raises(MissingExtraError, match=r"headprune\[gguf\].*--unchecked"):
        hp.export(model, tmp_path / "no.gguf", format="gguf")
    file, found = export_checked(model, tmp_path / "yes.gguf", "gguf", unchecked=True)
    assert file.is_file()
    assert "not opened by llama.cpp" in found.told[-1]


def test_a_disk_that_fills_leaves_nothing(folders, tmp_path, monkeypatch):
    """And what was there before is whole."""
    (tmp_path / "a.gguf").write_text("before")

    def full(*words):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(GGUFWriter, "write_tensor_data", full)
    with pytest.raises(CheckpointError, match="No space left"):
        hp.export(pruned(folders / "llama"), tmp_path / "a.gguf", format="gguf")
    assert (tmp_path / "a.gguf").read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["a.gguf"]


def test_the_command_writes_a_file_or_a_folder_and_tells_the_figures(folders, tmp_path):
    """A file that exists is kept, unless --force is said."""
    pruned(folders / "llama", *SHAPES["uneven heads"]).save_pretrained(tmp_path / "model")
    for path in (folders / "llama").glob("token*"):
        (tmp_path / "model" / path.name).write_bytes(path.read_bytes())
    (tmp_path / "text.txt").write_text(comparison.TEXT[::-1])
    words = ["export", tmp_path / "model", "--format", "gguf", "--quantize", "q8_0", "--corpus", tmp_path / "text.txt"]

    def told(out, *more):
        run = [str(word) for word in (*words, "--out", tmp_path / out, *more)]
        return CliRunner().invoke(app, run, catch_exceptions=False).stdout

    assert "log-probabilities within" in told("small.gguf")
    with pytest.raises(HeadpruneError, match=r"exists. Choose another --out, or say --force"):
        told("small.gguf")
    (tmp_path / "small.gguf").write_text("old")
    found = told("small.gguf", "--force", "--json")
    assert json.loads(found[found.index("{") :])["checks"]["gap"] < 1e-4
    assert (tmp_path / "small.gguf").stat().st_size > 1000
    told("folder")
    assert (tmp_path / "folder" / "model.gguf").is_file()
    assert "heads were removed" in (tmp_path / "folder" / "README.md").read_text()
    with pytest.raises(HeadpruneError, match="Did you mean 'q8_0'"):
        told("other.gguf", "--quantize", "q8")
