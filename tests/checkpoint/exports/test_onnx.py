"""Pruned models as ONNX: the file that onnxruntime runs answers as the model does."""

from __future__ import annotations

import builtins
import json

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from transformers import AutoModel, BertTokenizer
from typer.testing import CliRunner

import headprune as hp
from headprune.checkpoint.exports import one_pass
from headprune.cli.app import app
from headprune.errors import CheckpointError, MissingExtraError, UnsupportedModelError, VerificationError
from headprune.structure.dummy_inputs import example_inputs
from tests.families.tiny import labelled_batch, tiny_model


def pruned(family, **more):
    """Without the first site's heads, and without a group of the second's."""
    model = tiny_model(family, **more)
    heads = hp.find_heads(model)
    first, second = heads.sites[:2]
    return hp.prune_(model, hp.HeadMask.full(heads).without(first.id, *(f"{second.id}:{h}" for h in second.groups[0])))


def answers(folder, batch, name="model.onnx"):
    session = onnxruntime.InferenceSession(str(folder / name), providers=["CPUExecutionProvider"])
    asked = {node.name for node in session.get_inputs()}
    if "token_type_ids" in asked:  # as a tokenizer gives them for single texts
        batch = {"token_type_ids": torch.zeros_like(batch["input_ids"]), **batch}
    return session.run(None, {key: value.numpy() for key, value in batch.items() if key in asked})[0]


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "vit", "bart", "distilbert"])
def test_the_file_answers_as_the_model(family, tmp_path):
    """Ragged layers, an emptied site, grouped queries, cross-attention; another batch and length than exported."""
    model = pruned(family)
    folder = hp.export(model, tmp_path / "out", format="onnx")
    for batch in (example_inputs(model), example_inputs(model, batch=5, length=12, seed=4)):
        with torch.no_grad():
            output = model(**batch)
        expected = output.logits if "logits" in output else output.last_hidden_state
        np.testing.assert_allclose(answers(folder, batch), expected.numpy(), atol=1e-4)
    assert "heads were removed" in (folder / "README.md").read_text()


def test_no_layer_has_width_zero(tmp_path):
    """Runtimes mis-handle them."""
    folder = hp.export(pruned("bert"), tmp_path / "out", format="onnx")
    graph = onnx.load(folder / "model.onnx").graph
    assert all(0 not in tensor.dims for tensor in graph.initializer)


def test_the_pruned_file_is_smaller(tmp_path):
    """Heads are gone from it, not masked."""
    sizes = []
    for name, model in (("whole", tiny_model("bert")), ("small", pruned("bert"))):
        folder = hp.export(model, tmp_path / name, format="onnx")
        sizes.append(sum(np.prod(tensor.dims) for tensor in onnx.load(folder / "model.onnx").graph.initializer))
    assert sizes[1] < sizes[0]


def test_quantised_weights_come_near(tmp_path):
    """A second file, of whole numbers."""
    model = pruned("bert")
    folder = hp.export(model, tmp_path / "out", format="onnx", int8=True)
    batch = example_inputs(model)
    exact, rough = (answers(folder, batch, name) for name in ("model.onnx", "model.int8.onnx"))
    assert np.abs(exact - rough).max() < 0.1 * np.abs(exact).max() + 0.05
    kinds = {tensor.data_type for tensor in onnx.load(folder / "model.int8.onnx").graph.initializer}
    assert onnx.TensorProto.INT8 in kinds or onnx.TensorProto.UINT8 in kinds


def test_a_file_that_answers_otherwise_is_not_written(tmp_path, monkeypatch):
    """Compared before it is moved to its place."""
    monkeypatch.setattr(one_pass, "LARGEST_GAP", -1.0)
    with pytest.raises(VerificationError, match="Nothing was written"):
        hp.export(pruned("bert"), tmp_path / "out", format="onnx")
    assert not list(tmp_path.rglob("*.onnx"))


def test_what_pytorch_cannot_export_is_refused(tmp_path, monkeypatch):
    """With PyTorch's own reason, and nothing left behind."""

    def fails(*args, **kwargs):
        raise ValueError("a reason")

    monkeypatch.setattr(torch.onnx, "export", fails)
    with pytest.raises(UnsupportedModelError, match="a reason"):
        hp.export(pruned("bert"), tmp_path / "out", format="onnx")
    assert not (tmp_path / "out").exists()


def test_without_the_packages_the_extra_is_named(tmp_path, monkeypatch):
    """pip install 'headprune[onnx]'."""
    real = builtins.__import__

    def without(name, *rest):
        if name == "onnxruntime":
            raise ImportError("no", name="onnxruntime")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match=r"headprune\[onnx\]"):
        hp.export(pruned("bert"), tmp_path / "out", format="onnx")


def test_the_command(tmp_path):
    """Folder in, folder out."""
    pruned("bert").save_pretrained(tmp_path / "model")
    words = ["export", tmp_path / "model", "--format", "onnx", "--int8", "--out", tmp_path / "out", "--json"]
    told = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False).stdout
    assert json.loads(told[told.index("{") :])["format"] == "onnx"
    assert (tmp_path / "out" / "model.int8.onnx").is_file()
    with pytest.raises(CheckpointError, match="int8 is for the format onnx"):
        CliRunner().invoke(app, ["export", str(tmp_path / "model"), "--int8", "--out", str(tmp_path / "x")],
                           catch_exceptions=False)  # fmt: skip


def test_pruned_models_compile_and_export():
    """torch.export and torch.compile take a pruned model as they take any other."""
    model = pruned("bert").eval()
    batch = example_inputs(model)
    with torch.no_grad():
        expected = model(**batch)[0]
        program = torch.export.export(model, (), kwargs=dict(batch))
        torch.testing.assert_close(program.module()(**batch)[0], expected, atol=1e-5, rtol=1e-4)
        compiled = torch.compile(model, backend="aot_eager")
        torch.testing.assert_close(compiled(**batch)[0], expected, atol=1e-5, rtol=1e-4)


def test_onnx_and_standalone_without_some_neurons(tmp_path):
    """The other formats take them as they are."""
    pytest.importorskip("onnxruntime")
    model = tiny_model("bert").eval()
    heads = hp.find_heads(model, neurons=True)
    hp.prune_(model, hp.HeadMask.full(heads).without("neurons.0", "neurons.1:3", "encoder.1:0"))
    hp.export(model, tmp_path / "onnx", format="onnx")
    assert (tmp_path / "onnx" / "model.onnx").is_file()
    hp.export(model, tmp_path / "alone", format="standalone")
    alone = AutoModel.from_pretrained(tmp_path / "alone", trust_remote_code=True)
    assert alone.config.intermediate_size == 48


def test_an_onnx_file_in_8_bits_is_never_that_of_another_model(tmp_path):
    """Exported without int8, an older one goes; labels of an example are no input of the file."""
    onnx = pytest.importorskip("onnxruntime")
    model = tiny_model("bert")
    hp.export(model, tmp_path, format="onnx", int8=True)
    assert (tmp_path / "model.int8.onnx").exists()
    hp.export(model, tmp_path, format="onnx", example=labelled_batch(model))
    assert not (tmp_path / "model.int8.onnx").exists()
    session = onnx.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    assert "labels" not in {node.name for node in session.get_inputs()}


def test_sentence_pairs_are_answered_as_by_the_model(tmp_path):
    """Token types are an input of the file; the built-in check sees pairs as the tokenizer encodes them."""
    words = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        "heads",
        "of",
        "attention",
        "they",
        "look",
        "at",
        "other",
        ".",
    ]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    tokenizer = BertTokenizer(str(tmp_path / "vocab.txt"))
    saved = pruned("bert")
    for part in (saved, tokenizer):
        part.save_pretrained(tmp_path / "model")
    model = type(saved).from_pretrained(tmp_path / "model").eval()
    pairs = tokenizer(["heads of attention", "they"], ["look at", "other heads."], padding=True, return_tensors="pt")
    assert bool(pairs["token_type_ids"].any())
    assert len(one_pass._tokenized(model, example_inputs(model))) == 2
    for name, given in (("made", None), ("own", {k: v for k, v in pairs.items() if k != "token_type_ids"})):
        folder = hp.export(model, tmp_path / name, format="onnx", example=given)
        with torch.no_grad():
            expected = model(**pairs).logits
            without = model(input_ids=pairs["input_ids"], attention_mask=pairs["attention_mask"]).logits
        np.testing.assert_allclose(answers(folder, pairs), expected.numpy(), atol=1e-4)
        assert float((expected - without).abs().max()) > 1e-2  # the types matter
