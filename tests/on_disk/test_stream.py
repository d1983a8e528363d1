"""A checkpoint that is worked through on disk becomes what the same work in memory makes of it."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

import headprune as hp
from headprune.checkpoint.shards import INDEX, write_shard
from headprune.errors import CheckpointError, MaskError, MemoryLimitError, UnsupportedModelError
from headprune.on_disk import streamed as streaming
from tests.families.tiny import tiny_model
from tests.recovery.test_recover import batches_for

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gpt_neox", "phi3", "gpt2", "opt")
WITH_MASK = (*FAMILIES, "mixtral")


def saved(family, folder, **how):
    model = tiny_model(family)
    model.save_pretrained(folder, **how)
    return AutoModelForCausalLM.from_pretrained(folder).eval()


def half(heads):
    """Every second group of heads and every second neuron goes; one site alone keeps all."""
    kept = {site.id: [h for group in site.groups[::2] for h in group] for site in heads}
    return hp.HeadMask.from_dict(heads, {**kept, heads.sites[0].id: list(heads.sites[0].kept)})


def weights(folder):
    return {name: value for path in folder.glob("*.safetensors") for name, value in load_file(path).items()}


def assert_same(found, expected, within=0.0):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        gap = float((found[name].double() - value.double()).abs().max()) if value.numel() else 0.0
        assert gap <= within * max(1e-30, float(value.double().abs().max())), f"{name}: {gap}"


@pytest.mark.parametrize("family", WITH_MASK)
@pytest.mark.parametrize("shards", ["5GB", "20KB"])
def test_a_mask_alone_gives_the_files_of_the_model_in_memory(family, shards, tmp_path):
    """Tensor by tensor, and it loads and answers."""
    model = saved(family, tmp_path / "whole", max_shard_size=shards)
    streamed = hp.stream(tmp_path / "whole")
    assert streamed.heads == hp.find_heads(model, neurons=True)
    mask = half(streamed.heads)
    streamed.prune(mask, tmp_path / "disk")
    hp.prune_(model, mask).save_pretrained(tmp_path / "memory")
    assert_same(weights(tmp_path / "disk"), weights(tmp_path / "memory"))
    batch = {"input_ids": torch.randint(2, 20, (2, 9))}
    small = AutoModelForCausalLM.from_pretrained(tmp_path / "disk").eval()
    torch.testing.assert_close(small(**batch).logits, model(**batch).logits)
    entries = [json.loads((tmp_path / name / "config.json").read_text())["headprune"] for name in ("disk", "memory")]
    assert entries[0]["heads"]["sites"] == entries[1]["heads"]["sites"]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_repair_gives_the_weights_of_the_model_in_memory(family, tmp_path):
    """Within 1e-6 of the largest number in float32."""
    model = saved(family, tmp_path / "whole")
    batches = batches_for(model)
    streamed = hp.stream(tmp_path / "whole")
    mask = half(streamed.heads)
    streamed.prune(mask, tmp_path / "disk", data=batches, recover="least-squares")
    hp.recover_(model, mask, batches)
    hp.prune_(model, mask).save_pretrained(tmp_path / "memory")
    assert_same(weights(tmp_path / "disk"), weights(tmp_path / "memory"), within=1e-6)
    AutoModelForCausalLM.from_pretrained(tmp_path / "disk")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("method", ["reconstruction", "output-norm"])
def test_scores_are_those_of_the_model_in_memory(family, method, tmp_path):
    """Of heads and neurons."""
    model = saved(family, tmp_path / "whole")
    batches, streamed = batches_for(model), hp.stream(tmp_path / "whole")
    found = streamed.score(batches, method=method, parts="both")
    expected = hp.score(model, batches, method=method, heads=hp.find_heads(model, neurons=True))
    for site, values in expected.to_dict()["scores"].items():
        torch.testing.assert_close(
            torch.tensor(found.to_dict()["scores"][site]), torch.tensor(values), rtol=1e-4, atol=1e-6
        )


def test_bfloat16_stays_and_differs_by_one_rounding(tmp_path):
    """Of each weight."""
    tiny_model("llama").to(torch.bfloat16).save_pretrained(tmp_path / "whole")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "whole").eval()
    batches, streamed = batches_for(model), hp.stream(tmp_path / "whole")
    mask = half(streamed.heads)
    streamed.prune(mask, tmp_path / "disk", data=batches, recover="least-squares")
    hp.prune_(hp.recover_(model, mask, batches), mask).save_pretrained(tmp_path / "memory")
    found, expected = weights(tmp_path / "disk"), weights(tmp_path / "memory")
    assert {value.dtype for value in found.values()} == {torch.bfloat16}
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=2**-7, atol=1e-6)


def test_a_bias_that_a_repair_gives_is_stored(tmp_path):
    """And the model loads with it."""
    model = saved("llama", tmp_path / "whole")
    batches, streamed = batches_for(model), hp.stream(tmp_path / "whole")
    mask = half(streamed.heads)
    streamed.prune(mask, tmp_path / "disk", data=batches, recover="bias")
    hp.prune_(hp.recover_(model, mask, batches, method="bias"), mask)
    small = AutoModelForCausalLM.from_pretrained(tmp_path / "disk").eval()
    torch.testing.assert_close(small(**batches[0]).logits, model(**batches[0]).logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("killed", [0, 1, 2])
def test_a_killed_run_goes_on_where_it_was(killed, tmp_path, monkeypatch):
    """No layer is repaired twice, nothing that loads is left before the end, and the result is the same."""
    model = saved("llama", tmp_path / "whole")
    batches, mask = batches_for(model), half(hp.stream(tmp_path / "whole").heads)
    written = []

    def some(path, entries):
        if "unfinished" in str(path) and path.name.startswith("model-"):
            if len(written) == killed:
                raise KeyboardInterrupt
            written.append(path.name)
        write_shard(path, entries)

    monkeypatch.setattr(streaming, "write_shard", some)
    with pytest.raises(KeyboardInterrupt):
        hp.stream(tmp_path / "whole").prune(mask, tmp_path / "disk", data=batches, recover="least-squares")
    assert not (tmp_path / "disk" / "config.json").exists()
    with pytest.raises((OSError, ValueError)):
        AutoModelForCausalLM.from_pretrained(tmp_path / "disk")
    before, written[:] = [*written], []
    monkeypatch.setattr(
        streaming, "write_shard", lambda path, entries: (written.append(path.name), write_shard(path, entries))
    )
    hp.stream(tmp_path / "whole").prune(mask, tmp_path / "disk", data=batches, recover="least-squares")
    assert not set(before) & set(written)
    hp.stream(tmp_path / "whole").prune(mask, tmp_path / "fresh", data=batches, recover="least-squares")
    assert_same(weights(tmp_path / "disk"), weights(tmp_path / "fresh"))
    assert not (tmp_path / "disk" / "unfinished").exists()


def test_a_missing_shard_and_an_index_that_lies_are_told(tmp_path):
    """Before anything is written."""
    saved("llama", tmp_path / "whole", max_shard_size="20KB")
    index = json.loads((tmp_path / "whole" / INDEX).read_text())
    lying = {**index, "weight_map": {**index["weight_map"], "model.norm.weight": min(index["weight_map"].values())}}
    (tmp_path / "whole" / INDEX).write_text(json.dumps(lying))
    if lying != index:
        with pytest.raises(CheckpointError, match="does not say where"):
            hp.stream(tmp_path / "whole")
    (tmp_path / "whole" / INDEX).write_text(json.dumps(index))
    gone = sorted((tmp_path / "whole").glob("*.safetensors"))[1]
    gone.unlink()
    with pytest.raises(CheckpointError, match=gone.name):
        hp.stream(tmp_path / "whole")


def test_a_type_that_cannot_be_computed_with_is_told(tmp_path):
    """By the name of the tensor."""
    saved("llama", tmp_path / "whole")
    path = tmp_path / "whole" / "model.safetensors"
    content = load_file(path)
    content["model.layers.1.mlp.up_proj.weight"] = content["model.layers.1.mlp.up_proj.weight"].to(torch.float8_e4m3fn)
    save_file(content, path, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"up_proj.*F8_E4M3"):
        hp.stream(tmp_path / "whole")


def test_a_full_disk_leaves_nothing_that_loads(tmp_path, monkeypatch):
    """And says what to do."""
    saved("llama", tmp_path / "whole")
    streamed = hp.stream(tmp_path / "whole")

    def full(handle, mode):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("headprune.checkpoint.shards.os.fdopen", full)
    with pytest.raises(CheckpointError, match="No space left"):
        streamed.prune(half(streamed.heads), tmp_path / "disk")
    assert not (tmp_path / "disk" / "config.json").exists()


def test_what_cannot_be_streamed_is_refused_by_name(tmp_path):
    """Two stacks; experts that loading changes; scores with a backward pass; a memory below one layer."""
    tiny_model("t5").save_pretrained(tmp_path / "t5")
    with pytest.raises(UnsupportedModelError, match="T5"):
        hp.stream(tmp_path / "t5")
    model = saved("mixtral", tmp_path / "mixtral")
    with pytest.raises(UnsupportedModelError, match="Mixtral"):
        hp.stream(tmp_path / "mixtral").score(batches_for(model))
    model = saved("llama", tmp_path / "llama")
    with pytest.raises(MaskError, match="reconstruction"):
        hp.stream(tmp_path / "llama").score(batches_for(model), method="sensitivity")
    with hp.memory_limit("1K"), pytest.raises(MemoryLimitError, match="One layer"):
        hp.stream(tmp_path / "llama").score(batches_for(model))
