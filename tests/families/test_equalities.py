"""The equalities that everything rests on, over real model classes of 44 families."""

from __future__ import annotations

import copy

import pytest
import torch
import transformers
from packaging.version import Version

import headprune as hp
from headprune.structure.dummy_inputs import example_inputs
from headprune.structure.run import difference, run
from tests.families.tiny import FAMILIES, expected_sites, padded_batch, tiny_model

# T5's line adds its position bias where it cannot be cut before 5.15; `prune_` says so.
NEEDS = {"t5": "5.15", "mt5": "5.15"}


@pytest.fixture(scope="module", params=FAMILIES)
def family(request):
    if Version(transformers.__version__) < Version(NEEDS.get(request.param, "5.1")):
        pytest.skip(f"{request.param} is pruned from transformers {NEEDS[request.param]} on")
    return request.param


@pytest.fixture(scope="module")
def model(family):
    return tiny_model(family)


@pytest.fixture(scope="module")
def heads(model):
    return hp.find_heads(model)


def answer(model, batch):
    with torch.no_grad():
        return run(model, batch)


def masked_answer(model, mask, batch):
    with hp.masked(model, mask):
        return answer(model, batch)


def one_unit_fewer(heads, which=0):
    """Every site loses one head, or one group where heads share keys and values."""
    gone = [f"{site.id}:{index}" for site in heads for index in site.groups[which]]
    return hp.HeadMask.full(heads).without(*gone)


def test_all_sites_are_found(family, heads):
    """As many as the config says, with nothing left aside."""
    assert {
        component: sum(s.component == component for s in heads) for component in heads.components
    } == expected_sites(family)
    assert heads.skipped == ()


def test_masking_a_head_changes_the_answer(model, heads):
    """At every site, for its first head."""
    batch = example_inputs(model)
    plain = answer(model, batch)
    for site in heads:
        mask = hp.HeadMask.full(heads).without(f"{site.id}:0")
        assert not difference(masked_answer(model, mask, batch), plain).is_small, site.id


def test_a_full_mask_is_bit_identical(model, heads):
    """Ones that want gradients go through the hooks and change no bit."""
    batch = example_inputs(model)
    plain = answer(model, batch)
    ones = {site.id: torch.ones(site.num_heads, requires_grad=True) for site in heads}
    assert difference(masked_answer(model, ones, batch), plain).largest == 0.0


def test_removing_heads_equals_masking_them(model, heads):
    """One head or group of every site at once, on whole and on padded batches."""
    mask = one_unit_fewer(heads)
    pruned = hp.prune_(copy.deepcopy(model), mask)
    assert len(hp.find_heads(pruned)) == len(mask)
    for batch in (example_inputs(model), padded_batch(model)):
        assert difference(answer(pruned, batch), masked_answer(model, mask, batch)).is_small


def test_emptying_a_site_equals_masking_all_its_heads(model, heads):
    """Each site in turn, and all of them together; no zero-width layer is left."""
    full, batch = hp.HeadMask.full(heads), padded_batch(model)
    for mask in [*(full.without(site.id) for site in heads), hp.HeadMask.empty(heads)]:
        pruned = hp.prune_(copy.deepcopy(model), mask)
        assert difference(answer(pruned, batch), masked_answer(model, mask, batch)).is_small
        assert all(0 not in parameter.shape for parameter in pruned.parameters())


def test_two_prunings_equal_one_mask(model, heads):
    """Indices stay those of the original model."""
    first = one_unit_fewer(heads, which=-1)
    pruned = hp.prune_(copy.deepcopy(model), first)
    second = one_unit_fewer(hp.find_heads(pruned))
    hp.prune_(pruned, second)
    assert hp.HeadMask.full(hp.find_heads(pruned)) == second
    batch = padded_batch(model)
    assert difference(answer(pruned, batch), masked_answer(model, second, batch)).is_small


@pytest.mark.parametrize("emptied", [False, True])
def test_a_saved_model_loads_as_it_was(model, heads, tmp_path, emptied):
    """Ragged and emptied; bit for bit; also after saving the loaded model again."""
    mask = one_unit_fewer(heads)
    if emptied:
        mask = mask.without(heads.sites[0].id, heads.sites[-1].id)
    pruned = hp.prune_(copy.deepcopy(model), mask)
    batch = padded_batch(model)
    expected = answer(pruned, batch)
    pruned.save_pretrained(tmp_path / "first")
    loaded = type(model).from_pretrained(tmp_path / "first").eval()
    assert difference(answer(loaded, batch), expected).largest == 0.0
    assert hp.find_heads(loaded) == hp.find_heads(pruned)
    loaded.save_pretrained(tmp_path / "second")
    again = type(model).from_pretrained(tmp_path / "second").eval()
    assert difference(answer(again, batch), expected).largest == 0.0


@pytest.mark.parametrize("emptied", [False, True])
def test_cached_generation_equals_uncached(model, heads, emptied):
    """And equals that of the masked model, with ragged and emptied layers."""
    if not getattr(model, "can_generate", lambda: False)():
        pytest.skip("this type does not generate")
    mask = one_unit_fewer(heads)
    if emptied:
        mask = mask.without(*(site.id for site in heads if site.layer == 0))
    pruned = hp.prune_(copy.deepcopy(model), mask)
    prompt = {k: v for k, v in example_inputs(model).items() if k != "decoder_input_ids"}
    settings = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False}
    cached = pruned.generate(**prompt, **settings, use_cache=True)
    assert cached.tolist() == pruned.generate(**prompt, **settings, use_cache=False).tolist()
    with hp.masked(model, mask):
        assert cached.tolist() == model.generate(**prompt, **settings, use_cache=True).tolist()


def test_eager_attention_gives_the_same_and_maps_of_the_heads_left(family):
    """Found under eager attention too; `output_attentions` has one map per head that is left."""
    model = tiny_model(family, attn_implementation="eager")
    heads = hp.find_heads(model)
    mask = one_unit_fewer(heads)
    pruned = hp.prune_(copy.deepcopy(model), mask)
    batch = padded_batch(model)
    assert difference(answer(pruned, batch), masked_answer(model, mask, batch)).is_small
    with torch.no_grad():
        output = pruned(**batch, output_attentions=True)
    maps = output.get("attentions") or output.get("encoder_attentions")
    if maps is None:
        pytest.skip("two towers: their attentions are inside the towers' outputs")
    # ALBERT gives a map per layer that runs its one module, Swin one per stage.
    left = [len(mask.kept(site.id)) for site in heads if site.component == heads.components[0] for _ in site.layers]
    found = [m.shape[1] for m in maps]
    assert found == ([1, 3] if family == "swin" else left)


def test_bf16_stays_within_its_tolerance(model, heads):
    """Pruned equals masked within 2e-2 of the largest output."""
    half = copy.deepcopy(model).to(torch.bfloat16)
    mask = one_unit_fewer(heads)
    batch = padded_batch(half)
    expected = masked_answer(half, mask, batch)
    assert difference(answer(hp.prune_(half, mask), batch), expected).is_small


def test_a_pruned_model_trains_under_gradient_checkpointing(model, heads):
    """Gradients reach what is left of the projections."""
    mask = one_unit_fewer(heads).without(*(site.id for site in heads.sites[:-1]))
    pruned = hp.prune_(copy.deepcopy(model), mask).train()
    if pruned.supports_gradient_checkpointing:
        pruned.gradient_checkpointing_enable()
    output = pruned(**example_inputs(model))
    sum(
        x.float().square().mean() for x in output.to_tuple() if isinstance(x, torch.Tensor) and x.requires_grad
    ).backward()
    site = heads.sites[-1]
    weight = pruned.get_submodule(hp.find_heads(pruned)[site.id].output).weight
    assert weight.grad is not None
    assert weight.grad.abs().sum() > 0
